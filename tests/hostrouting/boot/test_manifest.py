"""Tests that the manifest lists only what hostrouting installs, because a removal deletes everything in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from planning import install_for_boot, wanted_probe
from wanted import SHADOWED, config

import phases
from hostrouting import Config, Configure, FileError, Host, Layout, RemoveHostRouting
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH, InstalledPart, Manifest
from hostrouting.doctor.examine import examine
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = config(SHADOWED, consumer="kubelet.service", watch={"enabled": True})


@pytest.fixture
def units(layout: Layout) -> FakeSystemd:
    """Return a fake systemd with no running machines."""
    return FakeSystemd(layout)


def test_it_names_each_parts_files_flags_and_config(host: Host, layout: Layout) -> None:
    phases.run(Configure(CONFIG, host=host))
    manifest = Manifest.load(layout)
    assert [(name, part.is_blocking, part.is_gated) for name, part in manifest.parts.items()] == [
        (ROUTES, True, True),
        (CHECK, True, True),
        (WATCH, False, False),
    ]
    assert manifest.config == CONFIG
    named = {layout.of(name) for part in manifest.parts.values() for name in part.files}
    assert all(path.is_file() for path in named)
    assert {path for path in manifest.files(layout) if path.exists()} >= named


def test_without_an_installation_it_is_empty(layout: Layout) -> None:
    assert Manifest.load(layout) == Manifest()
    assert not Manifest().files(layout)
    assert Manifest().config == Config()


def spoil(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


PARTS: list[Any] = [None, [], "x", {"../x": {}}, {"x/y": {}}]
FOREIGN = ["/etc/passwd", "/etc/aks-flex-node/../passwd", "/etc/aks-flex-node/a/b", "etc/x", "/", "", 3, None]


@pytest.mark.parametrize(
    "change",
    [
        *(spoil("parts", ROUTES, "files", 0, value=name) for name in FOREIGN),
        *(spoil("folders", value=[name]) for name in ["/", "/usr", "/etc/../usr", "/etc/ssh", 3]),
        *(spoil("consumer", value=name) for name in ["../../x.service", "x", "", None]),
        *(spoil("former", value=[name]) for name in ["../../x.service", "x/y.service"]),
        *(spoil("parts", value=value) for value in PARTS),
        spoil("parts", ROUTES, "config", value={"hostRouting": ["nothingSuch"]}),
    ],
)
def test_foreign_names_are_refused(host: Host, layout: Layout, change: Callable[[dict[str, Any]], None]) -> None:
    phases.run(Configure(CONFIG, host=host))
    document = json.loads(layout.manifest.read_text())
    change(document)
    layout.manifest.write_text(json.dumps(document))
    before = {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}
    with pytest.raises(FileError, match="hostrouting.installed.json"):
        phases.run(RemoveHostRouting(host=host))
    assert {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"parts": 3}', "null", '{"consumer": "../../x.service", "parts": {}, "folders": []}']
)
def test_a_broken_manifest_is_an_error_with_a_hint(host: Host, layout: Layout, text: str) -> None:
    layout.manifest.parent.mkdir(parents=True)
    layout.manifest.write_text(text)
    with pytest.raises(FileError, match="can't read the manifest.*fix it"):
        phases.run(Configure(CONFIG, host=host))
    assert not host.routes.our_routes()


def test_a_removed_part_does_not_keep_the_old_wait(host: Host, layout: Layout) -> None:
    phases.run(Configure(CONFIG, host=host))
    without = Config(static_routes=CONFIG.static_routes, wait_seconds=7, consumer=CONFIG.consumer)
    phases.run(Configure(without, host=host))
    assert Manifest.load(layout).config == without
    assert not phases.run(Configure(without, host=host)).changes


def test_parts_of_other_programs_come_last(layout: Layout) -> None:
    manifest = Manifest("kubelet.service", {"another": InstalledPart(), CHECK: InstalledPart()})
    assert list(manifest.with_parts((), {ROUTES: InstalledPart()}).parts) == [ROUTES, CHECK, "another"]
    assert list(manifest.with_parts(["another"], {}).parts) == [CHECK]


@pytest.mark.parametrize(
    "change",
    [
        spoil("hostRouting", "watch", value={"enabled": True, "textfile": 3}),
        spoil("hostRouting", "staticRoutes", value={"enabled": True, "routes": [{"destination": "x"}]}),
        spoil("hostRouting", "waitSeconds", value="no"),
    ],
)
def test_an_edited_config_is_an_error(host: Host, layout: Layout, change: Callable[[dict[str, Any]], None]) -> None:
    phases.run(Configure(CONFIG, host=host))
    before = layout.manifest.read_text()
    document = json.loads(before)
    change(document)
    layout.manifest.write_text(json.dumps(document))
    with pytest.raises(FileError, match="the manifest was edited"):
        _ = Manifest.load(layout).config
    assert "not-examined" in {finding.kind for finding in examine(host=host).findings}
    phases.run(Configure(CONFIG, host=host))
    assert layout.manifest.read_text() == before
    layout.manifest.write_text(json.dumps(document))
    phases.run(RemoveHostRouting(host=host))
    assert not layout.manifest.exists()
    assert not layout.script(ROUTES).exists()


def test_a_rediscovered_probe_holds_no_start_back(host: Host, layout: Layout) -> None:
    """The probe isn't part of the gate, and all of its files are found again."""
    phases.run(Configure(CONFIG, host=host))
    install_for_boot(host, wanted_probe("eth0", CONFIG.consumer, layout))
    before = Manifest.load(layout).parts
    layout.manifest.unlink()
    found = Manifest.of_host(layout).parts
    assert {name: (part.is_gated, {*part.files}) for name, part in found.items()} == {
        name: (part.is_gated, {*part.files}) for name, part in before.items()
    }
    phases.run(RemoveHostRouting(host=host))
    assert not layout.gates(CONFIG.consumer)[-1].exists()


def test_a_file_with_a_similar_name_is_not_ours(host: Host, layout: Layout) -> None:
    phases.run(Configure(CONFIG, host=host))
    copy = layout.script(ROUTES).with_suffix(".sh.bak")
    copy.write_text("another file")
    layout.manifest.unlink()
    phases.run(RemoveHostRouting(host=host))
    assert copy.read_text() == "another file"
