"""Tests of the drop-ins, the gate list, and the parsing of systemd's output and failures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from file_trees import write_file
from recording_tasks import meanwhile

from hostrouting import UnitError
from hostrouting.boot import systemctl
from hostrouting.boot.gate import (
    DROP_INS,
    list_text,
    missing_commands,
    opening_settings,
    with_other_scripts,
)
from hostrouting.boot.layout import WATCH
from hostrouting.boot.manifest import InstalledPart, Manifest
from hostrouting.boot.systemctl import (
    ANSWER_SECONDS,
    LAST_ANSWER_SECONDS,
    Systemctl,
    running_systemd,
)
from phases import Cancelled, CancelScope
from phases.testing import FakeClock

CONSUMER = "systemd-nspawn@.service"
HOLD, AGAIN, LAST = (f"/etc/hostrouting/gate.sh {word}" for word in ("hold", "again", "last"))
PASSED = (
    "/usr/bin/test -f /run/aks-flex-node/passed/${INVOCATION_ID} -o -e /etc/hostrouting/gate.off"
)


def gated(**is_blocking: bool) -> Manifest:
    parts = {
        name.replace("_", "-"): InstalledPart(blocks, is_gated=True)
        for name, blocks in is_blocking.items()
    }
    return Manifest(CONSUMER, parts)


def shown(argv: str, flags: str = "privileged") -> str:
    path = argv.split()[0]
    times = "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }"
    return f"{{ path={path} ; argv[]={argv} ; flags={flags} ; {times}"


HELD = {
    "ExecConditionEx": shown(HOLD, "ignore-failure privileged"),
    "ExecStartPreEx": "\n".join(map(shown, (AGAIN, LAST, PASSED))),
}


def test_all_lines_of_the_drop_ins_differ() -> None:
    """If two lines were identical, systemd would confuse them and skip the lines between them."""
    lines = [line for text in DROP_INS for line in text.splitlines() if line.startswith("Exec")]
    assert len({line.partition("=")[2].lstrip("-+") for line in lines}) == len(lines) == 4


def test_the_list_has_forgiven_steps_last() -> None:
    folder = "/etc/aks-flex-node"
    assert list_text(
        gated(static_routes=True, check_route_overlap=True), {"static-routes": b"one"}
    ) == (
        f"{folder}/static-routes.sh required 7692c3ad3540bb80\n"
        f"{folder}/check-route-overlap.sh required -\nend\n"
    )
    warn = gated(check_route_overlap=False, static_routes=True, another=True).with_parts(
        (), {WATCH: InstalledPart()}
    )
    assert [line.split()[:2] for line in list_text(warn, {}).splitlines()] == [
        [f"{folder}/static-routes.sh", "required"],
        [f"{folder}/another.sh", "required"],
        [f"{folder}/check-route-overlap.sh", "forgiven"],
        ["end"],
    ]
    assert list_text(Manifest(), {}) == "end\n"


def test_scripts_in_other_folders() -> None:
    text = list_text(gated(static_routes=True, check_route_overlap=True), {})
    assert with_other_scripts(
        text, {"/etc/aks-flex-node/static-routes.sh": "/new/static-routes.sh"}
    ) == (
        "/new/static-routes.sh required -\n"
        "/etc/aks-flex-node/check-route-overlap.sh required -\nend\n"
    )


def test_a_unit_with_all_commands_lacks_none() -> None:
    assert missing_commands(HELD) == ()
    others = "\n".join((shown("/bin/true", ""), shown(LAST), shown("/bin/true"), shown(PASSED)))
    assert missing_commands(HELD | {"ExecStartPreEx": others}) == ()


@pytest.mark.parametrize(
    "command",
    [
        *("", shown("/bin/true"), shown(LAST, ""), shown(LAST, "ignore-failure privileged")),
        *(shown(f"{LAST}; true"), shown(f"/tmp{LAST}"), shown(AGAIN)),
    ],
)
def test_a_weakened_command_counts_as_missing(command: str) -> None:
    assert missing_commands(HELD | {"ExecStartPreEx": f"{command}\n{shown(PASSED)}"}) == (
        f"ExecStartPre=+{LAST}",
    )


def test_an_unforgiven_condition_counts_as_missing() -> None:
    """Without the "-" prefix, systemd would skip the unit permanently."""
    for shows in (shown(HOLD), ""):
        assert missing_commands(HELD | {"ExecConditionEx": shows}) == (f"ExecCondition=-+{HOLD}",)


FINE = {
    "SuccessExitStatus": "133",
    "TimeoutStartUSec": "1min 30s",
    "Environment": "A=1 B=INVOCATION_ID",
}
FINE |= {"UnsetEnvironment": "B", "RuntimeDirectory": "kubelet", "RuntimeDirectoryPreserve": "no"}


OPENING = [
    *(
        ("SuccessExitStatus", each, "always")
        for each in ("255", "1", "133 2", "126", "127", "200", "203", "243")
    ),
    *(("SuccessExitStatus", each, "always") for each in ("KILL", "SIGTERM", "ABRT 0")),
    *(
        ("SuccessExitStatus", each, "never")
        for each in ("", "133", "143", "254", "199", "244", "HUP")
    ),
    *(("TimeoutStartUSec", each, "in STRICT") for each in ("4s", "24.500s", "500ms", "24")),
    *(
        ("TimeoutStartUSec", each, "never")
        for each in ("25s", "59s", "1min", "1min 30s", "1h", "infinity", "")
    ),
]


@pytest.mark.parametrize(("name", "value", "when"), OPENING)
def test_an_exit_status_or_a_timeout_may_open_the_gate(name: str, value: str, when: str) -> None:
    for is_strict in (False, True):
        found = list(opening_settings(FINE | {name: value}, is_strict=is_strict))
        assert bool(found) == (when == "always" or (when == "in STRICT" and is_strict))
        assert all(f"{name.replace('USec', 'Sec')}=" in each for each in found)


# --- systemctl ------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the only systemctl that is found. The test writes its script."""
    monkeypatch.setattr(systemctl, "SEARCH_PATH", str(tmp_path))
    return tmp_path / "systemctl"


def be(program: Path, text: str) -> None:
    write_file(program, f"#!/bin/sh\n{text}\n", 0o755)


Hanging = Callable[[Callable[[], object]], AbstractContextManager[None]]


@pytest.fixture
def hanging(program: Path) -> Hanging:
    """Let systemctl hang, and return a context manager that calls a function once it does."""
    pipe = program.with_name("pipe")
    os.mkfifo(pipe)
    be(program, f"echo >{pipe}; exec /bin/sleep 1000")
    return lambda act: meanwhile(lambda: (pipe.read_text(), act()))


def test_a_hanging_systemctl_is_waited_for_once(program: Path, hanging: Hanging) -> None:
    """A failing run rolls back several steps while holding its lock, so repeated timeouts would
    delay other runs.
    """
    assert running_systemd() is running_systemd()
    clock = FakeClock()
    units = Systemctl(scope=CancelScope(clock=clock))
    silence = r"`systemctl daemon-reload` gave no answer within 60 s"
    with hanging(lambda: clock.advance(ANSWER_SECONDS)), pytest.raises(UnitError, match=silence):
        units.reload()
    clock.advance(ANSWER_SECONDS - 1)
    with pytest.raises(UnitError, match="wasn't run"):
        units.disable("x.service")
    clock.advance(1)
    be(program, "exit 0")
    units.reload()


@pytest.mark.parametrize("is_late", [False, True])
def test_the_end_of_a_run_ends_the_wait_for_systemctl(hanging: Hanging, is_late: bool) -> None:
    """The rollback can't be cancelled, but its timeout is short too, and so long a wait before it
    counts.
    """
    clock = FakeClock()
    scope, units = CancelScope(clock=clock), Systemctl(scope=CancelScope(clock=clock))

    def end() -> None:
        clock.advance(LAST_ANSWER_SECONDS if is_late else LAST_ANSWER_SECONDS - 1)
        scope.cancel("SIGTERM")

    with hanging(end), pytest.raises(Cancelled, match="SIGTERM"):
        units.within(scope).reload()
    if not is_late:
        silence = "gave no answer within 5 s"
        with (
            hanging(lambda: clock.advance(LAST_ANSWER_SECONDS)),
            pytest.raises(UnitError, match=silence),
        ):
            units.reload()
    with pytest.raises(UnitError, match="wasn't run"):
        units.reload()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "echo 'Unit x.service is masked.' >&2; exit 1",
            r"`systemctl enable x\.service` failed: Unit x\.service is masked",
        ),
        ("exit 3", "failed: exit code 3"),
        (
            "echo 'System has not been booted with systemd as init system (PID 1).' >&2; exit 1",
            "doesn't run here.*\nhint: .*--routes-only.*; without routes in CONFIG it removes ours",
        ),
        (None, "No such file or directory.*\nhint: .*--routes-only"),
    ],
)
def test_a_failing_systemctl_is_quoted(program: Path, text: str | None, told: str) -> None:
    if text is not None:
        be(program, text)
    with pytest.raises(UnitError, match=told):
        Systemctl().enable("x.service")


def test_where_a_gate_is_installed_routes_alone_are_no_advice(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate's next start would remove such routes."""
    monkeypatch.setattr("hostrouting.boot.systemctl.is_present", lambda _: True)
    with pytest.raises(UnitError) as caught:
        Systemctl().enable(program.name)
    assert caught.value.hint == ""


def test_all_lines_of_a_property_are_read(program: Path) -> None:
    be(program, "printf 'ExecStartPreEx=a\\nExecStartPreEx=b\\nRequires=\\nOther=c\\n'")
    assert Systemctl().show("x.service", "ExecStartPreEx", "Requires", "After") == {
        "ExecStartPreEx": "a\nb",
        "Requires": "",
        "After": "",
    }


def test_timers_are_systemds_and_an_image_has_none(program: Path) -> None:
    later, asked = program.with_name("systemd-run"), program.with_name("asked")
    be(later, f'printf "%s\\n" "$@" >{asked}')
    Systemctl("/image").run_later("x", 60, ["/bin/true"])
    assert not asked.exists()
    Systemctl().run_later("x", 60, ["/bin/echo", "a b"])
    *options, first, second = asked.read_text().splitlines()
    assert {"--unit=x", "--on-active=60", "--timer-property=AccuracySec=100ms"} <= {*options}
    assert [first, second] == ["/bin/echo", "a b"]


def test_orderings_come_from_both_sides_without_missing_units(program: Path) -> None:
    be(
        program,
        "printf '%s\\n' Id=a.service After=b.service Before=c.service LoadState=loaded '' "
        "Id=c.service After= Before= LoadState=loaded '' "
        "Id=gone.service After=a.service Before= LoadState=not-found",
    )
    assert Systemctl().orderings("c.service") == {
        "a.service": ("b.service",),
        "c.service": ("a.service",),
    }
    assert Systemctl("/image").orderings() == {}


def test_orderings_are_read_of_no_template(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "multi-user.target.wants/a.service",
        "b.service.requires/c.mount",
        "getty.target.wants/getty@.service",
    ):
        write_file(tmp_path / "units" / name)
    monkeypatch.setattr(systemctl, "UNIT_PATH", [str(tmp_path / "units")])
    be(program, f'printf "%s\\n" "$@" >{program}.log')
    Systemctl().orderings("x.service")
    asked = program.with_name("systemctl.log").read_text().splitlines()
    assert asked[asked.index("--") :] == ["--", "*", "a.service", "c.mount", "x.service"]


def test_a_pattern_of_instances_is_not_read_as_an_option(program: Path) -> None:
    be(program, f'printf "%s\\n" "$@" >{program}.log')
    Systemctl().instances("-H@.service")
    assert Path(f"{program}.log").read_text().splitlines()[-3:] == [
        "--",
        "-H@hostrouting-probe.service",
        "-H@*.service",
    ]


def test_units_shown_at_once_are_told_apart(program: Path) -> None:
    """systemctl shows named units in their order, maybe by another name, and then those that match
    a pattern.
    """
    blocks = (
        "Id=other.service",
        "Id=a@hostrouting-probe.service",
        "Id=a@1.service",
        "Id=a@hostrouting-probe.service",
    )
    states = zip(blocks, ("loaded", "not-found", "masked", "not-found"), strict=True)
    be(
        program,
        "printf '%s\\n' " + " '' ".join(f"{each} LoadState={state}" for each, state in states),
    )
    shown = Systemctl().show_each(["alias.service"], "LoadState", consumers=["a@.service"])
    assert {unit: each["LoadState"] for unit, each in shown.items()} == {
        "a@hostrouting-probe.service": "loaded",
        "alias.service": "not-found",
        "a@1.service": "masked",
    }
    assert Systemctl("/image").show_each(["x.service"], "LoadState") == {}


@pytest.mark.parametrize(
    ("word", "code", "is_active"),
    [
        ("active", 0, True),
        ("activating", 3, True),
        ("inactive", 3, False),
        ("failed", 3, False),
        ("inactive", 4, False),
    ],
)
def test_only_a_running_unit_is_stopped(
    program: Path, word: str, code: int, is_active: bool
) -> None:
    be(
        program,
        f'echo "$@" >>{program}.log; [ "$1" = is-active ] || exit 0; echo {word}; exit {code}',
    )
    assert Systemctl().is_active("x.service") is is_active
    Systemctl().stop("x.service")
    Systemctl().restart("x.service")
    Systemctl().start("x.service")
    log = program.with_name("systemctl.log").read_text().splitlines()
    assert ("stop x.service" in log) is is_active
    assert log[-2:] == ["restart x.service", "start --no-block x.service"]
    image = Systemctl("/image")
    for act in (image.restart, image.start, image.stop):
        act("x.service")
    assert not image.is_active("x.service")
    assert program.with_name("systemctl.log").read_text().splitlines() == log


def test_the_callers_path_does_not_choose_systemctl(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(program, "echo enabled")
    write_file(tmp_path / "evil/systemctl", "#!/bin/sh\necho disabled; exit 1\n", 0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "evil"))
    assert Systemctl().is_enabled("x.service")


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="no systemctl on this machine")
def test_an_image_is_enabled_and_disabled_offline(tmp_path: Path) -> None:
    unit = write_file(
        tmp_path / "etc/systemd/system/x.service",
        "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
    )
    image = Systemctl(tmp_path)
    assert not image.is_enabled("x.service")
    assert not image.is_enabled("none.service")
    image.reload()
    image.enable("x.service")
    assert image.is_enabled("x.service")
    assert (unit.parent / "multi-user.target.wants/x.service").is_symlink()
    assert image.instances("systemd-nspawn@.service") == ()
    image.disable("x.service")
    image.disable("x.service")
    assert not image.is_enabled("x.service")
