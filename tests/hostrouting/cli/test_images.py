"""Tests that with ``--root``, commands plan, examine and clean an image without reading anything
outside of it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from file_trees import read_trees, write_file, write_link
from node import shadowed_kernel

from hostrouting import Host, Layout
from hostrouting.doctor.examine import CHECKS
from hostrouting.testing import FakeSystemd

CONFIG = {
    "hostRouting": {
        "staticRoutes": {
            "enabled": True,
            "routes": [{"destination": "172.16.1.0/24"}, {"destination": "fd00:1::/48"}],
        },
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24", "fd00:1::/48"], "mode": "STRICT"},
    }
}
ETC = "etc/systemd/system"
TEMPLATE = "systemd-nspawn@.service"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return the build host. It must be neither read nor changed."""
    return Host(routes=shadowed_kernel(), units=FakeSystemd(), layout=Layout(tmp_path / "builder"))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return the root of an image with a config and everything that the gate needs."""
    if shutil.which("systemctl") is None:
        pytest.skip("no systemctl on this machine")
    root = tmp_path / "image"
    for name in ("bash", "ip", "flock", "timeout", "mawk"):
        write_file(root / f"usr/bin/{name}", mode=0o755)
    write_link(root / "etc/alternatives/awk", "/usr/bin/mawk")
    write_link(root / "usr/bin/awk", "/etc/alternatives/awk")
    write_link(root / "bin", "usr/bin")
    write_file(root / f"usr/lib/systemd/system/{TEMPLATE}", "[Service]\nExecStart=true\n")
    write_file(root / "etc/aks-flex-node/config.json", json.dumps(CONFIG))
    return root


def findings(run: Any, image: Path) -> dict[str, str]:
    document = json.loads(run("doctor", "--root", image, "--output", "json")[1])
    return {each["kind"]: each["subject"] for each in document["findings"]}


def test_an_image_is_planned_installed_examined_and_cleaned(run: Any, image: Path) -> None:
    before = read_trees(image)
    code, out, _ = run("plan", "--root", image)
    assert (code, read_trees(image)) == (2, before)
    told = out.splitlines()[-1]
    assert told.endswith(f"{TEMPLATE} through isn't known: an image is checked at its first boot")
    planned = json.loads(run("plan", "--root", image, "--output", "json")[1])
    assert (planned["host"], planned["nextStart"]["admitted"], planned["routes"]) == (
        str(image),
        None,
        [],
    )

    code, out, _ = run("apply", "--root", image, "--output", "json")
    applied = json.loads(out)
    assert (code, applied["host"], applied["files"]) == (0, str(image), planned["files"])
    assert (applied["overlap"]["verdict"], (image / "run").exists()) == ("unknown", False)
    assert (image / ETC / "multi-user.target.wants/static-routes.service").is_symlink()
    assert run("plan", "--root", image)[0] == 0
    assert run("doctor", "--root", image)[0] == 0
    examined = json.loads(run("doctor", "--root", image, "--output", "json")[1])
    assert [each["name"] for each in examined["checks"]] == [
        each.name for each in CHECKS if each.is_of_images
    ]
    assert examined["findings"] == []

    code, out, _ = run("remove", "--root", image, "--output", "json")
    removed = json.loads(out)
    assert (code, removed["host"], removed["stillRequired"]) == (0, str(image), {})
    assert {each["path"] for each in removed["files"]} >= {
        each["path"] for each in planned["files"]
    }
    assert read_trees(image) == before


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        (f"{ETC}/{TEMPLATE}.d/zzz.conf", "[Service]\nExecStartPre=\n", "gate-overridden"),
        (f"{ETC}/systemd-nspawn@kube1.service.d/zz-hostrouting.conf", "", "gate-overridden"),
        ("etc/hostrouting/gate.off", "", "gate-off"),
        (f"{ETC}/systemd-nspawn@kube1.service.d/override.conf", "[Service]\nExecStartPre=\n", ""),
        ("usr/lib/systemd/system/aks-flex-node-agent.service", "", "another-agent"),
    ],
)
def test_a_setting_that_opens_an_images_gate_is_found(
    run: Any, image: Path, name: str, text: str, kind: str
) -> None:
    run("apply", "--root", image)
    write_file(image / name, text)
    found = findings(run, image)
    assert kind in found if kind else not found
    assert run("doctor", "--root", image, "--strict")[0] == (1 if kind else 0)


def test_a_masked_unit_of_an_image_is_found(run: Any, image: Path) -> None:
    run("apply", "--root", image)
    write_link(image / ETC / "static-routes.service", "/dev/null")
    null = image / "dev" / "null"  # like the device, it isn't a file that root runs
    null.parent.mkdir()
    os.mkfifo(null)
    null.chmod(0o666)
    assert findings(run, image) == {"not-enabled": "static-routes.service"}


def test_a_fix_names_the_image(run: Any, image: Path) -> None:
    run("apply", "--root", image)
    (image / "etc/hostrouting/gate.sh").unlink()
    assert f"do: hostrouting apply --root {image}\n" in run("doctor", "--root", image)[1]


def test_a_program_that_only_this_machine_has_is_missing(run: Any, image: Path) -> None:
    """Symlinks in the image resolve inside the image, as they do when it runs."""
    write_link(image / "etc/alternatives/awk", shutil.which("sh") or "")
    write_link(image / "etc/alternatives/loop", "loop")
    run("apply", "--root", image)
    assert findings(run, image) == {"tool-missing": "awk"}


def test_the_watchers_python_is_looked_for_in_the_image(
    run: Any, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/run/venv/bin/python")
    document = {"hostRouting": CONFIG["hostRouting"] | {"watch": {"enabled": True}}}
    write_file(image / "etc/aks-flex-node/config.json", json.dumps(document))
    code, _, told = run("apply", "--root", image)
    assert (code, "/run/venv/bin/python isn't in the image: " in told) == (0, True)
    write_file(image / "run/venv/bin/python", mode=0o755)
    (image / "run/venv").chmod(0o777)
    code, _, told = run("apply", "--root", image)
    assert code == 1
    assert f"a user other than root can change {image}/run/venv" in told
    (image / "run/venv").chmod(0o755)
    code, _, told = run("apply", "--root", image)
    assert (code, "in the image: " in told) == (0, False)


def test_metrics_belong_to_the_image(run: Any, image: Path, tmp_path: Path) -> None:
    """The metrics directory may be anywhere, even behind a symlink that is valid only in the
    running image.
    """
    metrics = {"watch": {"enabled": True, "textfile": "/var/lib/metrics/hosts.prom"}}
    document = {"hostRouting": CONFIG["hostRouting"] | metrics}
    write_file(image / "etc/aks-flex-node/config.json", json.dumps(document))
    here = write_file(tmp_path / "elsewhere/hosts.prom", "of this machine")
    write_link(image / "var/lib/metrics", here.parent)
    inside = write_file(Path(f"{image}{here}"), "of the image")
    assert run("apply", "--root", image)[0] == 0
    assert run("remove", "--root", image)[0] == 0
    assert (here.exists(), inside.exists()) == (True, False)


def test_an_etc_that_apply_made_is_removed_from_the_image(
    run: Any, image: Path, tmp_path: Path
) -> None:
    config = (image / "etc/aks-flex-node/config.json").rename(tmp_path / "config.json")
    shutil.rmtree(image / "etc")
    assert run("apply", "--root", image, config)[0] == 0
    assert run("remove", "--root", image)[0] == 0
    assert not (image / "etc").exists()


def test_an_image_may_be_behind_a_link(run: Any, image: Path, tmp_path: Path) -> None:
    """Links inside the image are followed."""
    (image / "etc").rename(image / "usr/etc")
    write_link(image / "etc", "usr/etc")
    write_link(tmp_path / "mounted", image)
    (image / "etc/aks-flex-node").rename(image / "opt")
    write_link(image / "etc/aks-flex-node", "../../opt")
    assert run("apply", "--root", tmp_path / "mounted")[0] == 0
    assert (image / "opt/static-routes.sh").is_file()
    code, _, err = run("doctor", "--root", tmp_path / "mounted")
    assert (code, err) == (0, "")


def test_a_snapshot_is_not_an_image(run: Any, image: Path) -> None:
    assert run("plan", "--root", image, "--snapshot", "node.json")[0] == 64
