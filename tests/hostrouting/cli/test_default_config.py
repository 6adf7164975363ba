"""Tests that no command and no hint takes away what is installed, if the default CONFIG asks for
something else.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from file_trees import outside_run, read_trees, write_file
from go_package import ANY, write_go_package
from wanted import LED_AWAY, SHADOWED, TrialSystemd, ours, section

from hostrouting import Host, Layout
from hostrouting.testing import FakeKernel

GIVEN = {"hostRouting": section(SHADOWED)}
OTHERS = {"azure": {"subscriptionId": "s"}}
PROBE = {"hostNetworking": {"loadBalancerProbe": {"enabled": True}}}


@pytest.fixture
def host(kernel: FakeKernel, layout: Layout) -> Host:
    return Host(kernel, TrialSystemd(layout, kernel), layout)


@pytest.fixture
def given(run: Any, write: Any, host: Host) -> Path:
    """Return an installed config, while the default CONFIG has only others' keys."""
    write_default(host, OTHERS)
    path: Path = write(GIVEN)
    assert run("apply", path)[0] == 0
    return path


def write_default(host: Host, document: object) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    write_file(host.layout.config, text)


def commands_in(text: str) -> list[list[str]]:
    """Return the arguments of the commands at the ends of the lines of a hint."""
    return [
        shlex.split(line.partition(": hostrouting ")[2])
        for line in text.splitlines()
        if ": hostrouting " in line
    ]


def doctors(run: Any) -> dict[str, str]:
    """Return the hint of each kind of finding."""
    findings = json.loads(run("doctor", "--output", "json")[1])["findings"]
    return {each["kind"]: each["hint"] for each in findings}


@pytest.mark.parametrize(
    "default", [OTHERS, PROBE, {}], ids=["other keys", "the plug-in's key", "no key"]
)
@pytest.mark.parametrize("words", [(), ("--routes-only",), ("--try", "60")])
def test_a_bare_apply_removes_nothing(
    run: Any,
    host: Host,
    kernel: FakeKernel,
    given: Path,
    default: dict[str, Any],
    words: tuple[str, ...],
) -> None:
    write_default(host, default)
    before = ours(kernel), outside_run(host.layout.root)
    code, out, err = run("apply", *words)
    assert (code, out) == (78, "")
    assert (ours(kernel), outside_run(host.layout.root)) == before
    keep, remove = commands_in("\n".join(line for line in err.splitlines() if "hint:" in line))
    assert remove == ["remove"]
    assert run(*keep)[0] == 0
    assert run("plan")[0] == 0
    assert run("apply")[0] == 0
    assert json.loads(host.layout.config.read_text()).items() > default.items()


def test_the_refusal_in_json_is_one_document(run: Any, given: Path) -> None:
    code, out, _ = run("apply", "--output", "json")
    said = json.loads(out)
    assert (code, said["changed"], len(said["problems"]), len(said["hint"].splitlines())) == (
        78,
        False,
        1,
        2,
    )


def test_a_bare_apply_repairs_after_a_reset(
    run: Any, host: Host, kernel: FakeKernel, given: Path
) -> None:
    """AKSFlexNode's reset removes the folder with our scripts, and a later join writes a config
    without our keys.
    """
    shutil.rmtree(host.layout.config.parent)
    code, _, err = run("apply")
    assert (code, f"name it: {host.layout.manifest}" in err) == (78, True)
    write_default(host, OTHERS)
    assert run("apply")[0] == 0
    assert (ours(kernel), host.layout.manifest.exists()) == ((), False)


@pytest.mark.parametrize("lost", ["static-routes", "check-route-overlap"])
def test_a_lost_script_is_written_again_as_advised(
    run: Any, host: Host, kernel: FakeKernel, given: Path, lost: str
) -> None:
    """A bare command would take the rest away, too."""
    host.layout.script(lost).unlink()
    assert [run(word)[0] for word in ("apply", "plan")] == [78, 78]
    assert run(*shlex.split(doctors(run)["file-missing"])[1:])[0] == 0
    assert (host.layout.script(lost).exists(), len(ours(kernel))) == (True, 1)


def test_no_advice_removes_the_go_packages_script_first(
    run: Any, host: Host, kernel: FakeKernel, write: Any
) -> None:
    """Its rows are needed to take over its routes."""
    links = write_go_package(host.layout, f"{SHADOWED}|{ANY}|0")
    path = write(GIVEN)
    findings = json.loads(run("doctor", path, "--output", "json")[1])["findings"]
    hints = {each["hint"] for each in findings if each["kind"] in ("stale-file", "go-package-link")}
    assert len(hints) == 2
    assert not any("rm " in hint for hint in hints)
    lines = run("plan", path)[1].splitlines()
    assert [line for line in lines if "instead of the Go package's" in line]
    assert not [line for line in lines if line.startswith("-IFS")]
    assert run("apply", path)[0] == 0
    assert not any(link.is_symlink() for link in links)


def test_a_bare_apply_on_a_fresh_host_is_not_refused(run: Any, host: Host) -> None:
    write_default(host, OTHERS)
    assert run("apply")[0] == 0


def test_an_empty_section_still_removes_everything(
    run: Any, host: Host, kernel: FakeKernel, given: Path
) -> None:
    write_default(host, {"hostRouting": {}})
    assert run("apply")[0] == 0
    assert ours(kernel) == ()


LESS = {"hostRouting": section(cidrs=(SHADOWED,), mode="WARN")}


@pytest.mark.parametrize(
    "default", [OTHERS, LESS, "{"], ids=["no key", "another config", "no JSON"]
)
@pytest.mark.parametrize("is_tried", [False, True], ids=["apply", "confirm"])
def test_the_last_line_names_another_default(
    run: Any, write: Any, host: Host, *, is_tried: bool, default: object
) -> None:
    write_default(host, default)
    path = write(GIVEN)
    if is_tried:
        run("apply", "--try", "60", path)
    code, out, err = run(*(["confirm"] if is_tried else ["apply", path]))
    assert (code, err) == (0, "" if is_tried else f"hostrouting: {LED_AWAY}\n")
    last = out.splitlines()[-1]
    assert "the default CONFIG" in last
    if default == "{":
        return
    (record,) = commands_in(last)
    assert run(*record)[0] == 0
    assert run("apply")[0] == 0
    assert "default CONFIG" not in run("apply", path)[1]
    assert "another-config" not in doctors(run)


def test_the_note_is_a_warning_in_json(run: Any, host: Host, given: Path) -> None:
    code, out, err = run("apply", "--output", "json", given)
    (warning,) = json.loads(out)["warnings"]
    assert (code, err) == (0, "")
    assert commands_in(warning) == [
        ["config", "set", str(host.layout.config), "--from", str(given)]
    ]


@pytest.mark.parametrize("default", [None, GIVEN])
def test_the_same_or_no_default_is_not_mentioned(
    run: Any, write: Any, host: Host, default: object
) -> None:
    if default is not None:
        write_default(host, default)
    assert "default CONFIG" not in run("apply", write(GIVEN))[1]


def test_a_failing_check_names_another_default_too(run: Any, write: Any, host: Host) -> None:
    write_default(host, OTHERS)
    code, _, err = run("apply", write({"hostRouting": section(cidrs=(SHADOWED,))}))
    assert code == 1
    assert "the default CONFIG" in err


def test_the_doctors_hint_keeps_what_works(
    run: Any, host: Host, kernel: FakeKernel, given: Path
) -> None:
    before = ours(kernel)
    keep, *_ = commands_in(doctors(run)["another-config"])
    assert run(*keep)[0] == 0
    assert run("apply")[0] == 0
    assert ours(kernel) == before
    assert "another-config" not in doctors(run)


def test_an_images_own_default_counts(run: Any, write: Any, tmp_path: Path) -> None:
    if shutil.which("systemctl") is None:
        pytest.skip("no systemctl on this machine")
    root = tmp_path / "an image"
    write_file(
        root / "usr/lib/systemd/system/systemd-nspawn@.service", "[Service]\nExecStart=true\n"
    )
    write_file(root / "etc/aks-flex-node/config.json", json.dumps(OTHERS))
    path = write(GIVEN)
    code, out, _ = run("apply", "--root", root, path)
    (record,) = commands_in(out.splitlines()[-1])
    assert (code, record[2]) == (0, str(root / "etc/aks-flex-node/config.json"))
    before = read_trees(root)
    code, _, err = run("apply", "--root", root)
    assert (code, read_trees(root)) == (78, before)
    assert ["remove", "--root", str(root)] in commands_in(err)
    assert run(*record)[0] == 0
    assert run("apply", "--root", root)[0] == 0


class Killed(BaseException):
    """The end of a process that can't clean up."""


@pytest.fixture
def half_removed(
    run: Any, host: Host, write: Any, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Kill a removal after routes and drop-ins, and return the default CONFIG."""

    def killed(*_: object) -> None:
        raise Killed

    whole = GIVEN | OTHERS
    write_default(host, whole)
    assert run("apply")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr("hostrouting.boot.installation._remove_results", killed)
        patch.setattr("hostrouting.boot.installation._finish_manifest", killed)
        with pytest.raises(Killed):
            run("remove")
    assert host.layout.manifest.exists()
    return whole


def test_a_stopped_removal_is_taken_back_or_finished(
    run: Any, host: Host, kernel: FakeKernel, half_removed: dict[str, Any]
) -> None:
    """No command of the hints takes keys out of the default CONFIG."""
    write_go_package(host.layout, f"{SHADOWED}|{ANY}|0")
    hints = doctors(run)
    assert hints.keys() == {"interrupted", "go-package-link"}
    assert str(host.layout.manifest) not in "".join(hints.values())
    back, finish = commands_in(hints["interrupted"])
    assert (back, finish) == (["apply"], ["remove"])
    assert run(*back)[0] == 0
    assert (json.loads(host.layout.config.read_text()), len(ours(kernel))) == (half_removed, 1)
    assert run("remove")[0] == 0
    assert doctors(run).keys() == {"not-installed"}


@pytest.mark.parametrize("words", [("apply",), ("plan",), ("fix", "--in-place")])
def test_after_a_stopped_removal_nothing_is_recorded_in_the_default_config(
    run: Any, host: Host, half_removed: dict[str, Any], words: tuple[str, ...]
) -> None:
    write_default(host, OTHERS)
    hint = doctors(run)["interrupted"]
    assert commands_in(hint) == [["apply", "CONFIG"], ["remove"]]
    _, out, err = run(*words)
    assert "--from /" not in out + err


def test_after_a_removal_by_an_empty_config_the_default_one_is_offered(
    run: Any, host: Host, half_removed: dict[str, Any]
) -> None:
    code, out, _ = run("apply", host.layout.manifest)
    assert (code, "--from" in out) == (0, False)
    assert commands_in(out) == [["apply"]]


def test_a_lost_manifest_is_said_while_its_gate_is_there(run: Any, host: Host, given: Path) -> None:
    host.layout.manifest.unlink()
    hints = doctors(run)
    assert commands_in(hints["not-installed"]) == [["apply", "CONFIG"], ["remove"]]
    assert not any("rm /" in hint for hint in hints.values())
    code, out, _ = run("check", given, "--output", "nagios")
    assert (code, "which may admit it unchecked" in out) == (1, True)


def test_routes_of_an_emergency_are_no_installation(
    run: Any, host: Host, write: Any, kernel: FakeKernel
) -> None:
    """A monitor learns that the next boot has nothing."""
    path = write(GIVEN)
    assert run("apply", "--routes-only", path)[0] == 0
    code, out, _ = run("check", path, "--output", "nagios")
    assert code == 1
    assert f"the next boot lacks our 1 route in the kernel: hostrouting apply {path}" in out
    notes = json.loads(run("check", path, "--output", "json")[1])["notes"]
    assert [each["kind"] for each in notes if "next boot" in each["message"]] == ["START"]
    assert run("apply", path)[0] == 0
    assert run("check", "--output", "nagios")[0] == 0
