"""Tests that commands have the right exit codes and output, and change nothing else."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from backends import Altered, listening
from file_trees import read_trees, write_file
from node import add_nics, default_route
from scenario import play
from terminals import opened
from wanted import LED_AWAY, LINE, MACHINE, SHADOWED, lose_default_route, section

from hostrouting import Config, Host, Layout, RouteError, UnitError, __version__, cli
from hostrouting.boot.bundle import ignition
from hostrouting.cli import main
from hostrouting.cli.arguments import all_commands
from hostrouting.cli.output import bad, say
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.links import Hardware
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.testing import FakeKernel, FakeSystemd

Complete = Callable[[str], list[str]]
COMMANDS = all_commands()
CONFIG = {"hostRouting": section(SHADOWED, cidrs=[SHADOWED, "10.96.0.0/12"])}


@pytest.fixture
def config(write: Callable[[object], Path]) -> Path:
    return write(CONFIG)


# --- usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--help"),
        (["frobnicate"], "'frobnicate' isn't a command;"),
        (["status"], "did you mean doctor?"),
        (["install"], "did you mean apply?"),
        (["uninstall"], "did you mean remove?"),
        (["chekc"], "did you mean check?"),
        (["help"], "did you mean --help?"),
        (["-v", "aply", "config.json"], "did you mean apply?"),
        (["lb-probe", "appyl"], "did you mean apply?"),
        *((words, "-x") for words in (["-x"], ["-x", "check"])),
        (["--verison"], "--verison"),
        *((["lb-probe", *more], "try hostrouting lb-probe --help") for more in ([], ["clean"])),
        (
            ["apply", "--dry-run"],
            "--dry-run; plan shows the changes of apply; try hostrouting apply --help",
        ),
        *(
            (["azure-vnet", *more], "try hostrouting azure-vnet --help")
            for more in ([], ["apply", "CONFIG"])
        ),
        (["check", "--frobnicate"], "--help"),
        (["check", "--cidr"], "--help"),
        (
            ["check", "--cidr", "10.0.0.0"],
            "such as 172.16.1.0/24; for this address alone, write 10.0.0.0/32",
        ),
        (["check", "--cidr", "fe80::/64"], "which means nothing without an interface"),
        (["check", "--output", "yaml"], "--help"),
        (["check", "--out", "json"], "--help"),
        (["check", "a", "b"], "--help"),
        *(
            ([*words, "--snapshot=a", "--snapshot=b"], "given twice")
            for words in (["check", "--cidr=10.0.0.0/8"], ["explain", "10.0.0.1"])
        ),
        (["demo", "--output", "yaml"], "--help"),
        (["remove", "CONFIG"], "--help"),
        (["render"], "--help"),
        (["render", "--out", "x", "--format", "ignition"], "--help"),
        (["plan", ""], "is a shell variable unset?"),
        (["fix", ""], "is a shell variable unset?"),
        (["fix", "--format", "yaml"], "--help"),
        (["fix", "--in-place", "--cidr", "172.16.0.0/16"], "--in-place"),
        (["fix", "--in-place", "--format", "ip"], "--in-place"),
        *(
            (["config", *words], "")
            for words in ([], ["set"], ["set", "a"], ["set", "--from", "a"], ["get", "a"])
        ),
        (["apply", "--root", "x", "--routes-only"], ""),
        *(
            (["doctor", *option], option[0])
            for option in (["--fail-on-warnings"], ["--ignore-preflight-errors", "all"])
        ),
        *(
            (["apply", "--try", "60", other, "CONFIG"], "")
            for other in ("--routes-only", "--root=/image")
        ),
        *(
            (["apply", f"--try={span}", "CONFIG"], "1 to 86400")
            for span in ("0", "-1", "1.5", "86401", "²", "")
        ),
        *(
            (["explain", word], "")
            for word in (
                "172.16.3",
                "172.16.3.4/32",
                "::1",
                "127.0.0.1",
                "224.0.0.1",
                "0.0.0.0",
                "",
            )
        ),
    ],
)
def test_wrong_usage_is_64_with_a_hint(run: Any, words: list[str], told: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (64, "")
    assert told in err


def test_without_a_command_all_commands_are_listed(run: Any) -> None:
    for words, commands in (([], [*COMMANDS]), (["azure-vnet"], ["plan", "clean"])):
        said = [line.split(maxsplit=1) for line in run(*words)[2].splitlines()[:-1]]
        assert [command for command, clause in said if clause] == commands


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([word] for word in COMMANDS),
        *(
            [word, below]
            for word in COMMANDS
            if COMMANDS[word].is_group
            for below in COMMANDS[word].run()
        ),
    ],
)
def test_help_fits_narrow_terminals(
    run: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Lines are broken only between words."""
    words: list[str] = []
    for columns in (120, 80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = run(*command, "--help")
        assert (code, out.split()) == (0, words or out.split())
        words = out.split()
        usage = out.partition("\n\n")[0]
        assert usage.startswith("usage: hostrouting")
        assert [line for line in out.removeprefix(usage).splitlines() if len(line) > columns] == []


def test_the_version_is_the_packages(run: Any) -> None:
    assert run("--version") == (0, f"hostrouting {__version__}\n", "")


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["apply", "--routes-only"], ["plan"], ["check"], ["watch"], ["fix"]]
)
@pytest.mark.parametrize(
    "content",
    [None, "folder", "fifo", "", "{", "[]", '{"hostRouting": 3}', '{"hostRouting": {"x": 1}}'],
)
def test_a_bad_or_missing_config_is_78(
    run: Any, tmp_path: Path, kernel: FakeKernel, command: list[str], content: str | None
) -> None:
    path = tmp_path / "bad.json"
    if content == "folder":
        path.mkdir()
    elif content == "fifo":
        os.mkfifo(path)
    elif content is not None:
        path.write_text(content)
    before = read_routes(kernel)
    code, out, err = run(*command, path)
    assert (code, out) == (78, "")
    assert err.startswith("hostrouting: ")
    assert "is a directory" in err or content != "folder"
    assert "--cidr" not in err
    assert read_routes(kernel) == before
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["check", "fix"])
def test_a_cidr_instead_of_a_config_is_78(run: Any, command: str) -> None:
    code, out, err = run(command, "172.16.0.0/16")
    assert (code, out) == (78, "")
    assert "--cidr 172.16.0.0/16" in err


def test_details_of_cautions_and_notes_are_told_with_v(
    run: Any, config: Path, kernel: FakeKernel
) -> None:
    nic = IPv4Address("172.16.1.4")
    kernel.add_address("ib0", f"{nic}/16")
    brief = run("check", config)[1].splitlines()
    whole = run("check", "-v", config)[1].splitlines()
    report = json.loads(run("check", config, "--output", "json")[1])
    for note in report["notes"]:
        fact, *details = note["message"].split("; ")
        assert f"note: {note['kind']}: {fact}" in brief
        assert not any(f"  {detail}" in brief for detail in details)
        assert {f"  {detail}" for detail in details} <= {*whole}
    assert [line for line in brief if line.startswith(("caution: ", "note: "))] == [
        line for line in whole if line.startswith(("caution: ", "note: "))
    ]
    assert brief[-1] == "-v says more about these"
    assert brief[-1] not in whole


# --- apply, plan, remove --------------------------------------------------------------------------


SCREEN_LINES = 24
LAST_DROP_IN = "/etc/systemd/system/systemd-nspawn@.service.d/zz-hostrouting.conf"
WRITTEN = "Written by hostrouting; to uninstall: hostrouting remove"
ADMITTED = "would be let through: with every route installed, nothing that is expected is shadowed"


def test_plan_shows_the_changes_of_apply_and_makes_none(
    run: Any, config: Path, kernel: FakeKernel, host: Host
) -> None:
    before = read_routes(kernel), read_trees(host.layout.root)
    code, out, err = run("plan", config)
    assert (code, err) == (2, f"hostrouting: {LED_AWAY}\n")
    lines = out.splitlines()
    assert lines[0] == f"+ {LINE}"
    assert f"+ {LAST_DROP_IN}" in lines
    assert len(lines) <= SCREEN_LINES
    assert lines[-4:-1] == [
        "enable static-routes.service",
        "enable check-route-overlap.service",
        "-v shows the files as diffs",
    ]
    verbose = run("plan", "-v", config)[1].splitlines()
    assert {f"+++ {LAST_DROP_IN}", f"+# {WRITTEN}"} <= {*verbose}
    assert lines[-1] == f"the next start of systemd-nspawn@.service {ADMITTED}"
    assert (read_routes(kernel), read_trees(host.layout.root)) == before
    code, out, _ = run("apply", config)
    verdict, _, first, second, added, *_, kept = out.splitlines()
    assert (code, added) == (0, f"added     {LINE}")
    assert verdict.startswith("ok on ")
    assert (first, second) == ("✓ 172.16.1.0/24  by eth0", "✓ 10.96.0.0/12   by eth0")
    assert re.fullmatch(
        r"uplink: eth0 since [-0-9]+T[:0-9]+Z, kept until hostRouting\.uplinks names another", kept
    )
    code, out, _ = run("plan", config)
    assert code == 0
    assert out.splitlines()[0] == "nothing to change: 1 route already installed"


def test_an_ordinary_user_plans_what_root_would_change(
    run: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write({"hostRouting": section(SHADOWED, cidrs=[SHADOWED], watch={"enabled": True})})
    assert run("apply", path)[0] == 0
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    code, out, _ = run("plan", path)
    assert (code, out.splitlines()[0]) == (0, "nothing to change: 1 route already installed")


def test_unchanged_routes_are_counted_or_listed(run: Any, write: Any) -> None:
    """Thousands of lines would hide those that matter; JSON has each route."""
    more = [{"destination": f"172.16.{number}.0/24"} for number in (2, 3)]
    path = write(CONFIG)
    assert run("apply", path)[0] == 0
    path = write({"hostRouting": section(SHADOWED, *more, cidrs=[SHADOWED])})
    assert "= 1 route" in run("plan", path)[1].splitlines()
    assert f"= {LINE}" in run("-v", "plan", path)[1].splitlines()
    assert "unchanged 1 route" in run("apply", path)[1].splitlines()
    for command in ("apply", "plan"):
        lines = run(command, path)[1].splitlines()
        assert "nothing to change: 3 routes already installed" in lines
        assert len(json.loads(run(command, path, "--output", "json")[1])["unchanged"]) == 3
    assert f"unchanged {LINE}" in run("apply", path, "-v")[1].splitlines()


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("STRICT", "would be held back: OVERLAP: expected CIDR 172.16.2.0/24"),
        ("WARN", "would be let through: the mode is WARN, although OVERLAP"),
    ],
)
def test_plan_predicts_the_next_start(run: Any, write: Any, mode: str, told: str) -> None:
    code, out, _ = run("plan", write({"hostRouting": section(cidrs=["172.16.2.0/24"], mode=mode)}))
    assert code == 2
    assert told in out.splitlines()[-1]


@pytest.mark.parametrize("cidr", [SHADOWED, "172.16.2.0/24"])
def test_plan_without_systemd_predicts_no_start(
    run: Any, write: Any, monkeypatch: pytest.MonkeyPatch, cidr: str
) -> None:
    """Without systemd, nothing is installed, so no gate decides."""

    def is_active(*_: object) -> bool:
        raise UnitError("systemd doesn't run here")

    monkeypatch.setattr(FakeSystemd, "is_active", is_active)
    path = write({"hostRouting": section(cidrs=[cidr], mode="STRICT")})
    code, out, err = run("plan", path)
    assert (code, err.count("apply can't install this here")) == (2, 1)
    start = "the next start of systemd-nspawn@.service"
    told = f"whether the gate would let {start} through isn't known: "
    assert out.splitlines()[-1] == f"{told}apply can't install this here"
    assert json.loads(run("plan", path, "--output", "json")[1])["nextStart"]["admitted"] is None


def test_plan_shows_replacements_and_removals(run: Any, config: Path, kernel: FakeKernel) -> None:
    hop = (NextHop("eth0", IPv4Address("10.1.0.1")),)
    foreign = Route(IPv4Network("172.16.3.0/24"), hop, protocol=Protocol.DHCP)
    ours = [
        Route(IPv4Network("172.16.1.0/24"), hop, mtu=1300),
        Route(IPv4Network("172.16.2.0/24"), hop),
    ]
    assert kernel.write(Write.ADD, [foreign, *ours]) == ()
    document = json.loads(json.dumps(CONFIG))
    document["hostRouting"]["staticRoutes"]["routes"].append({"destination": "172.16.3.0/24"})
    config.write_text(json.dumps(document))
    code, out, _ = run("plan", config)
    assert code == 2
    assert [line[0] for line in out.splitlines()[:3]] == ["~", "-", "="]
    assert f"was: {LINE} mtu 1300" in out
    assert "proto dhcp  (another program's, already there)" in out


def test_render_into_another_users_folder_does_not_ask_for_root(
    run: Any, as_ordinary_user: Any
) -> None:
    with tempfile.TemporaryDirectory() as name:  # all users can read it, unlike pytest's folders
        config = write_file(Path(name, "config.json"), json.dumps(CONFIG))
        config.parent.chmod(0o755)
        assert run("render", config, "--out", f"{name}/ours")[0] == 0
        with as_ordinary_user():
            code, _, err = run("render", config, "--out", f"{name}/out")
    assert code == 77
    assert err.endswith(": Permission denied\nhostrouting: hint: use a folder that you own\n")


def test_render_prints_an_ignition_document(run: Any, config: Path) -> None:
    code, out, err = run("render", config, "--format", "ignition")
    assert (code, json.loads(out), err) == (0, ignition(Config.load(config)), "")


@pytest.mark.parametrize("words", [("--out", "files"), ("--format", "ignition")])
def test_render_names_the_python_of_the_watcher(
    run: Any, write: Any, tmp_path: Path, words: tuple[str, str]
) -> None:
    """The node may have none, or no hostrouting there."""
    path = write({"hostRouting": section(watch={"enabled": True})})
    how, to = words
    code, _, err = run("render", path, how, tmp_path / to if how == "--out" else to)
    assert (code, f"the watcher's unit starts {sys.executable}: install " in err) == (0, True)
    assert err.count("\n") == 1


def test_render_warns_of_a_python_that_others_can_replace(
    run: Any, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write({"hostRouting": section(watch={"enabled": True})})
    python = write_file(tmp_path / "venv/python", "")
    python.parent.chmod(0o777)
    monkeypatch.setattr(sys, "executable", str(python))
    code, _, err = run("render", path, "--format", "ignition")
    told = f"a user other than root can change {python.parent}, and the unit runs it as root\n"
    assert (code, err.splitlines(keepends=True)[1:]) == (0, [f"hostrouting: here {told}"])


@pytest.mark.parametrize("words", [("--out", "none"), ("--format", "ignition")])
def test_render_reports_an_empty_config(run: Any, tmp_path: Path, words: tuple[str, str]) -> None:
    """The command writes no script, and leaves an earlier config's script in place."""
    config = write_file(tmp_path / "config.json", '{"hostRouting": {}}')
    code, out, err = run(
        "render", config, words[0], tmp_path / words[1] if words[1] == "none" else words[1]
    )
    assert (code, err) == (0, "hostrouting: CONFIG enables nothing: there is nothing to install\n")
    assert not (tmp_path / "none").exists()
    assert words[1] == "none" or json.loads(out)["storage"] == {"files": []}


@pytest.mark.parametrize(("settle_seconds", "words"), [(None, "60 s"), (90, "90 s"), (0, "")])
def test_plan_names_the_address_that_apply_would_wait_for(
    run: Any, config: Path, kernel: FakeKernel, settle_seconds: int | None, words: str
) -> None:
    """A pending address is also reported for a snapshot, but it isn't a change."""
    kernel.add_link("ib1", hardware=Hardware.INFINIBAND)
    run("apply", "--routes-only", config)
    document = json.loads(json.dumps(CONFIG))
    document["hostRouting"]["routeOverlap"]["settleSeconds"] = settle_seconds
    config.write_text(json.dumps(document))
    recorded = write_file(config.with_name("node.json"), run("snapshot")[1])
    for where in ((), ("--snapshot", recorded)):
        out = run("plan", config, *where)[1]
        assert re.findall("would wait up to (.*)", out) == (
            [f"{words} for an address on ib1"] if words else []
        )
        assert json.loads(run("plan", config, *where, "--output", "json")[1])["pending"] == (
            ["ib1"] if words else []
        )
    assert run("plan", config, "--snapshot", recorded)[0] == 0


def test_remove_names_the_units_that_require_removed_ones(
    run: Any, config: Path, host: Host
) -> None:
    write_file(
        host.layout.units / f"{MACHINE}.d/needs.conf", "[Unit]\nRequires=static-routes.service\n"
    )
    assert run("apply", config)[0] == 0
    code, out, _ = run("remove")
    assert code == 0
    (line,) = [line for line in out.splitlines() if MACHINE in line]
    assert "static-routes.service" in line


def test_notes_are_printed_without_the_tasks_path(
    run: Any, config: Path, kernel: FakeKernel, monkeypatch: Any
) -> None:
    """A note added by the backend is printed even if it starts like a task's path.

    The task's path is only logged.
    """

    def fail(*_: object) -> None:
        error = RouteError("no kernel")
        vars(error)["__notes__"] = ["in task 7 of the queue"]
        raise error

    monkeypatch.setattr(kernel, "facts", fail)
    code, _, err = run("apply", "--routes-only", config)
    assert code == 1
    assert [line for line in err.splitlines() if "in task" in line] == [
        "hostrouting: in task 7 of the queue"
    ]


def test_a_stray_oserror_names_the_command_and_the_file(
    run: Any, config: Path, monkeypatch: Any
) -> None:
    def fail(*_: object, **_more: object) -> None:
        error = OSError(24, "Too many open files", "/etc/machine-id")
        vars(error)["__notes__"] = ["a note"]
        raise error

    monkeypatch.setattr("hostrouting.tasks.queries.check", fail)
    code, out, err = run("check", config)
    assert (code, out) == (2, "")
    what = f"can't carry out hostrouting check {config} (/etc/machine-id): Too many open files"
    assert err.splitlines() == [f"hostrouting: {what}", "hostrouting: a note"]


def test_a_terminal_shows_the_wait(
    kernel: FakeKernel, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_default_route(kernel)
    monkeypatch.setattr(
        kernel, "changes", listening(lambda _: os.kill(os.getpid(), signal.SIGTERM))
    )
    monkeypatch.setenv("TERM", "xterm")
    with opened() as terminal, open(terminal.path, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert cli.main(["check", "--cidr", "10.0.0.0/8"], host=host) == 2
        monkeypatch.undo()
        shown = terminal.read_until(b"half-done").decode()
    _, words, rest = shown.rpartition("waiting up to 30 s for the default route (0%)")
    cleared, _, end = rest.partition("\x1b[31mhostrouting:\x1b[0m stopped: SIGTERM")
    assert cleared == f"\r{' ' * len(words)}\r"
    assert end


# --- check ----------------------------------------------------------------------------------------


def test_a_check_of_no_cidr_is_2_with_a_hint(run: Any, write: Any, kernel: FakeKernel) -> None:
    play(kernel, "route add 169.254.0.0/16 dev ib0\nroute add 168.63.129.16 via 10.1.0.1 dev eth0")
    code, out, _ = run("check", write({}))
    assert "169.254.169.254/32 leaves through ib0: on Azure, the platform has this address" in out
    assert "168.63.129.16" not in out
    assert code == 2
    assert "nothing-expected: name the cluster's CIDRs with --cidr" in out
    assert "172.16.0.0/16 leaves through ib0: is the cluster's network in there?" in out
    assert "kubectl get nodes" in out
    assert "no CONFIG is named" not in out


def test_an_error_comes_before_its_hint(run: Any, host: Host) -> None:
    default = host.layout.config
    assert f"no CONFIG is named, and there is no {default}" in run("check")[1]
    for words, path, hint in (
        (["fix"], default, "this is the default CONFIG; name another, or the CIDRs to expect: "),
        (["check", "10.0.0.0/8"], "10.0.0.0/8", "to expect this CIDR: --cidr 10.0.0.0/8"),
    ):
        first, second = run(*words)[2].splitlines()
        assert first == f"hostrouting: {path}: there is no such file"
        assert second.startswith(f"hostrouting: hint: {hint}")
    write_file(default, "{")
    (line,) = run("fix")[2].splitlines()
    assert "is not JSON" in line


def test_what_to_write_into_a_missing_file_is_said(run: Any, host: Host, config: Path) -> None:
    other = str(config.parent / "none.json")
    for words in ([], [other], [other, "--cidr", "172.16.0.0/16"], ["--cidr", "172.16.0.0/16"]):
        _, write_first, example = run("fix", "--in-place", *words)[2].splitlines()
        assert "write the file first, with the CIDRs to expect, such as:" in write_first
        Config.from_mapping(json.loads(example.partition("hint: ")[2]))
    assert run("apply", config)[0] == 0
    _, hint = run("fix", "--in-place")[2].splitlines()
    assert run(*hint.partition(": hostrouting ")[2].split())[0] == 0
    assert run("fix", "--in-place")[0] == 0


@pytest.mark.parametrize("own", [None, {}, "same", {"hostRouting": section(mode="WARN")}])
def test_a_check_without_arguments_uses_the_installed_config(
    run: Any, config: Path, host: Host, own: Any
) -> None:
    """The gate does, too, whatever the agent has written to its own file since."""
    assert run("check")[0] == 2
    assert run("apply", config)[0] == 0
    if own is not None:
        write_file(host.layout.config, config.read_text() if own == "same" else json.dumps(own))
    code, out, err = run("check", "--output", "json")
    assert (code, json.loads(out)["mode"], "the installed config is checked" in err) == (
        0,
        "STRICT",
        own != "same",
    )


# --- snapshots ------------------------------------------------------------------------------------


def test_the_layouts_config_is_read_for_a_snapshot_too(elsewhere: Any, recorded: Path) -> None:
    code, _, err = elsewhere("check", "--snapshot", recorded)
    assert code == 78
    assert "laptop/etc/aks-flex-node/config.json" in err


def test_no_command_waits_for_a_snapshot(
    run: Any, elsewhere: Any, write: Any, kernel: FakeKernel
) -> None:
    lose_default_route(kernel)
    overlap = {"expectedCidrs": [SHADOWED], "mode": "STRICT", "settleSeconds": 600}
    config = write({"hostRouting": section(SHADOWED, waitSeconds=600, routeOverlap=overlap)})
    path = write_file(config.with_name("node.json"), run("snapshot")[1])
    code, out, err = elsewhere("check", config, "--snapshot", path)
    assert (code, err) == (2, "")
    assert out.splitlines()[1].startswith("the check couldn't judge anything: no-default-route")
    assert "ip -4 route" in out.splitlines()[3]
    page = Path(__file__).parents[3] / out.splitlines()[4].partition("/blob/main/")[2]
    assert (page.name, page.is_file()) == ("your-symptom.md", True)
    for words in (["--cidr", SHADOWED], [config]):
        assert elsewhere("fix", *words, "--snapshot", path)[:2] == (2, "")
    code, out, err = elsewhere("plan", config, "--snapshot", path)
    assert (code, err.startswith("hostrouting: apply would fail: ")) == (2, True)
    assert out.startswith("would wait up to 600 s for the default route")
    assert (
        "would be held back: the static routes can't be installed without the default route"
        in out.splitlines()[-1]
    )
    assert json.loads(run("plan", config, "--output", "json")[1])["missing"].startswith(
        "the default route"
    )


def test_plan_of_a_snapshot(run: Any, elsewhere: Any, config: Path, recorded: Path) -> None:
    code, out, err = elsewhere("plan", config, "--snapshot", recorded)
    assert (code, err) == (2, f"hostrouting: {LED_AWAY}\n")
    assert out.splitlines() == [
        f"+ {LINE}",
        "a snapshot contains no files and units: only routes were compared",
        run("plan", config)[1].splitlines()[-1],
    ]


def test_a_snapshot_from_stdin(
    elsewhere: Any, recorded: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(recorded.read_bytes())))
    assert elsewhere("check", config, "--snapshot", "-")[0] == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    code, _, err = elsewhere("check", config, "--snapshot", "-")
    assert (code, err.splitlines()[0]) == (78, "hostrouting: standard input isn't a snapshot:")
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = elsewhere("check", config, "--snapshot", "-")
    assert (code, err) == (78, "hostrouting: standard input: is closed; expected a snapshot\n")


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_missing_or_bad_snapshot_is_78(
    elsewhere: Any, command: str, config: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    assert elsewhere(command, config, "--snapshot", path) == (
        78,
        "",
        f"hostrouting: {path}: there is no such file\n",
    )
    assert elsewhere(command, config, "--snapshot", tmp_path)[0] == 78
    path.write_text("nonsense")
    code, _, err = elsewhere(command, config, "--snapshot", path)
    assert code == 78
    assert err.startswith(f"hostrouting: {path}: is not JSON: ")
    path.write_text('{"links": [], "rules": [{"priority": "x", "table": 254}], "routes": {}}')
    code, _, err = elsewhere(command, config, "--snapshot", path)
    assert (code, len(err.splitlines())) == (78, 4)
    assert err.startswith(
        f"hostrouting: {path} isn't a snapshot:\nhostrouting: addresses: is missing\n"
    )
    assert elsewhere(command, config, "--snapshot", "")[0] == 78


# --- terminals ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "is_coloured"),
    [
        (Terminal, {}, True),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (io.StringIO, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_only_terminals_that_want_colours_get_them(
    monkeypatch: pytest.MonkeyPatch,
    stream: type[io.StringIO],
    environment: dict[str, str],
    is_coloured: bool,
) -> None:
    for name, value in ({"TERM": "xterm", "NO_COLOR": "", "FORCE_COLOR": ""} | environment).items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(stream()) as written:
        say(bad("✗"))
    assert written.getvalue() == ("\x1b[31m✗\x1b[0m\n" if is_coloured else "✗\n")


@pytest.mark.parametrize(
    ("redirection", "words", "code"), [(">&-", "plan bad.json", "78"), ("| true", "--help", "0")]
)
def test_the_exit_code_does_not_depend_on_the_reader(
    tmp_path: Path, redirection: str, words: str, code: str
) -> None:
    """A closed pipe doesn't cause a traceback."""
    (tmp_path / "bad.json").write_text("{")
    script = (
        f"{sys.executable} -m hostrouting {words} 2>said {redirection}; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{code}\n"
    assert (tmp_path / "said").read_text().count("\n") == (code != "0")


def test_unwritable_output_is_74(host: Host, config: Path, monkeypatch: Any, capsys: Any) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(["check", str(config)], host=host) == 74
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.close()
    assert "done, but can't write the output: No space left on device" in capsys.readouterr().err


def test_an_unwritable_standard_error_changes_no_exit_code(config: Path) -> None:
    bad = write_file(config.with_name("bad.json"), "{")
    command = [sys.executable, "-m", "hostrouting", "plan", str(bad), "--output", "json"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.returncode == 78
    assert json.loads(done.stdout)["problems"]


@pytest.mark.parametrize(
    "words", [["apply", "-v"], ["-v", "apply"], ["-vv", "apply"], ["--verbose", "apply"]]
)
def test_verbose_logs_a_wide_record_for_each_task(run: Any, config: Path, words: list[str]) -> None:
    _, _, err = run(*words, "--routes-only", config)
    assert " path=install-routes" in err
    assert " status=ok" in err


# --- the consumer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "cidr", "mode", "expected"),
    [
        ("plan", SHADOWED, "WARN", 2),
        ("apply", SHADOWED, "WARN", 0),
        ("apply", "172.16.2.0/24", "STRICT", 1),
    ],
)
def test_a_missing_consumer_causes_a_warning(
    run: Any, write: Any, command: str, cidr: str, mode: str, expected: int
) -> None:
    path = write(
        {
            "hostRouting": section(
                SHADOWED, cidrs=[cidr], mode=mode, keep=["ib0"], consumer="kubelt.service"
            )
        }
    )
    warning = "there is no unit kubelt.service: until there is, nothing is held back"
    code, _, err = run(command, path)
    assert (code, err.splitlines()[0]) == (expected, f"hostrouting: {warning}")
    assert json.loads(run(command, path, "--output", "json")[1])["warnings"] == [warning]


def test_a_consumer_missing_from_an_image_causes_a_warning(
    run: Any, config: Path, tmp_path: Path
) -> None:
    units = tmp_path / "image/usr/lib/systemd/system"
    units.mkdir(parents=True)
    assert (
        "there is no unit systemd-nspawn@.service"
        in run("apply", "--root", tmp_path / "image", config)[2]
    )
    (units / "systemd-nspawn@.service").write_text("[Service]\n")
    assert "there is no unit" not in run("apply", "--root", tmp_path / "image", config)[2]


# --- completion -----------------------------------------------------------------------------------


BASH = r"""
. "$SCRIPT"
read -r _ _ _ _ function _ <<<"$(complete -p hostrouting)"
read -ra COMP_WORDS <<<"$LINE"
[[ $LINE == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$LINE COMP_POINT=${#LINE}
"$function" hostrouting "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(params=["bash", "fish"])
def complete(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Complete:
    """Return a function that returns a shell's completions for a line."""
    script = script_for(request.param, tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    commands = {
        "bash": ["bash", "--norc", "-c", BASH],
        "fish": ["fish", "--no-config", "-c", 'source "$SCRIPT"; complete -C "$LINE"'],
    }

    def proposals(line: str) -> list[str]:
        environment = os.environ | {"SCRIPT": str(script), "LINE": line, "HOME": str(tmp_path)}
        done = subprocess.run(
            commands[request.param],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == ""
        return sorted({text.partition("\t")[0].strip() for text in done.stdout.splitlines()} - {""})

    return proposals


def script_for(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    host = Host(routes=FakeKernel(), units=FakeSystemd(), layout=Layout(folder / "root"))
    assert main(["completion", shell], host=host) == 0
    return write_file(folder / "_hostrouting", capsys.readouterr().out)


def test_all_commands_are_proposed(complete: Complete) -> None:
    assert set(complete("hostrouting ")) >= set(COMMANDS)
    assert complete("hostrouting lb-probe ") == ["apply", "plan", "remove"]


def test_options_and_their_values_are_proposed(complete: Complete) -> None:
    assert {"--cidr", "--output", "--snapshot"} <= set(complete("hostrouting check --"))
    assert complete("hostrouting fix --format n") == ["netplan", "networkd"]
    assert complete("hostrouting completion z") == ["zsh"]


def test_files_and_folders_are_proposed_as_arguments(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "node.json").touch()
    (tmp_path / "nodes").mkdir()
    assert "node.json" in complete("hostrouting check no")
    assert "node.json" in complete("hostrouting fix --snapshot no")
    assert [name.rstrip("/") for name in complete("hostrouting apply --root no")] == ["nodes"]


ZSHRC = """
fpath=("$PWD" $fpath)
autoload -Uz compinit
compinit -u -D
hostrouting() { print -r -- "typed: $*" }
PS1='ready>'
"""


def test_zsh_completes_typed_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script_for("zsh", tmp_path, capsys)
    (tmp_path / ".zshrc").write_text(ZSHRC)
    (tmp_path / "node.json").touch()
    env = os.environ | {"TERM": "dumb", "ZDOTDIR": str(tmp_path)}
    with opened() as terminal, open(terminal.path, "r+b", buffering=0) as end:
        zsh = subprocess.Popen(
            ["zsh", "-d", "-i"],
            stdin=end,
            stdout=end,
            stderr=end,
            cwd=tmp_path,
            env=env,
            start_new_session=True,
        )
        for words, typed in (
            (b"ready>", b"hostrouting chec\t--snap\tno\t--outp\tnag\t\n"),
            (b"typed: check --snapshot node.json --output nagios", b"exit\n"),
        ):
            terminal.read_until(words)
            os.write(terminal.controller, typed)
        zsh.wait()


# --- the verified uplink --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_check_of_cidrs_alone_expects_the_uplink_that_the_installed_check_keeps(
    run: Any, write: Any, kernel: FakeKernel, host: Host, mode: str
) -> None:
    host.layout.verified.parent.mkdir(parents=True, exist_ok=True)
    host.layout.verified.write_text("eth0\n")
    section_ = section(SHADOWED, cidrs=[SHADOWED], mode=mode)
    assert run("apply", write({"hostRouting": section_}))[0] == 0
    add_nics(kernel, eth1="10.9.0.5/24")
    other = default_route(NextHop("eth1", IPv4Address("10.9.0.1")), metric=0)
    lose_default_route(kernel)
    assert not kernel.write(Write.ADD, [default_route(metric=100), other])
    document = json.loads(run("check", "--cidr", "10.96.0.0/12", "--output", "json")[1])
    assert document["defaultDevs"] == ["eth0"]


def test_too_little_memory_is_an_error_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise MemoryError

    routes: Any = Altered(FakeKernel(), facts=fail)
    host = Host(routes=routes, units=FakeSystemd(), layout=Layout(tmp_path))
    assert main(["check", "--cidr", "172.16.0.0/16"], host=host) == 2
    assert capsys.readouterr().err == "hostrouting: there isn't enough memory; see ulimit -v\n"
