"""Test which steps gate.sh runs, which failures it forgives, and how it ends."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from pathlib import Path
from shlex import quote
from subprocess import CompletedProcess
from time import monotonic

import pytest
from nightly import by_day
from node import until
from scripts import Sandbox, with_constants

from hostrouting.boot.render import PACKAGE, fill

pytestmark = pytest.mark.kernel

FOLDER = "/etc/aks-flex-node"
ROUTES, CHECK = f"{FOLDER}/static-routes.sh", f"{FOLDER}/check-route-overlap.sh"
HELD = (
    "the start is held: hostrouting doctor; "
    "to let it through unchecked: touch /etc/hostrouting/gate.off\n"
)
PASS, FAIL = "echo ran-$0-$*; exit 0", "exit 1"
HANG = "trap '' TERM; while :; do sleep 60; done"
DROP_IN = "/etc/systemd/system/x.service.d/zz-hostrouting.conf"


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def gate(**constants: int) -> str:
    """Return the gate script with a tenth of its poll interval, patience for a marker, and a unit
    without a time-out.
    """
    text = fill("gate.sh")
    for old, new in (
        ("\n  sleep 1\n", "\n  sleep 0.1\n"),
        ("-s KILL 1 ", "-s KILL 60 "),
        ("TIMEOUT=''", "TIMEOUT=1h"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return with_constants(text, **({"HOLD_SECONDS": 0} | constants))


def installed(steps: str, **scripts: str) -> str:
    """Return shell commands that install these scripts and a list of these steps, if any."""
    lines = [f"rm -rf {FOLDER} /etc/hostrouting; mkdir -p {FOLDER} /etc/hostrouting; cd {FOLDER}"]
    for name, body in scripts.items():
        path = f"{name.replace('_', '-')}.sh"
        lines.append(f"cat >{path} <<'EOF'\n#!/bin/bash -p\n{{\n{body}\n}}\nEOF\nchmod 755 {path}")
    if steps:
        lines.append(listed(steps))
    return "\n".join(lines)


def listed(steps: str) -> str:
    """Return a shell command that writes a step list. An empty list never holds a start."""
    rows = [f"{step} 0123456789abcdef" for step in steps.splitlines()]
    return f"printf '%s\\n' {' '.join(map(quote, [*rows, 'end']))} >/etc/hostrouting/gate.list"


def run(
    sandbox: Sandbox, prepare: str, *arguments: str, text: str = "", **more: object
) -> CompletedProcess[str]:
    return sandbox.run(
        text or gate(), *arguments or ("last",), is_host=True, etc=True, prepare=prepare, **more
    )


def codes(sandbox: Sandbox, *cases: str) -> list[int]:
    """Run the gate in one sandbox after each of these shell scripts, and return the exit codes."""
    each = "\n".join(f'({prepare}\n"$@" >>"$ROOT/said" 2>&1)\necho $?' for prepare in cases)
    return [
        int(code) for code in run(sandbox, "", before=("bash", "-c", each, "bash")).stdout.split()
    ]


def test_it_runs_each_step_in_gate_mode_and_in_order(sandbox: Sandbox) -> None:
    both = installed(
        f"{ROUTES} required\n{CHECK} forgiven", static_routes=PASS, check_route_overlap=PASS
    )
    done = run(sandbox, both)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"ran-{ROUTES}-gate\nran-{CHECK}-gate\n"


STEPS: list[tuple[str, dict[str, str], int]] = [
    (f"{ROUTES} required", {"static_routes": FAIL}, 255),
    (f"{ROUTES} required", {}, 255),
    (f"{ROUTES} required", {"static_routes": "kill -KILL $$"}, 255),
    (f"{CHECK} forgiven", {"check_route_overlap": FAIL}, 0),
    (f"{CHECK} forgiven", {}, 0),
    (f"{CHECK} required", {}, 255),
    (f"{CHECK} forgive", {}, 255),
    (
        f"{CHECK} forgiven\n{ROUTES} required",
        {"check_route_overlap": FAIL, "static_routes": FAIL},
        255,
    ),
]


def test_a_failed_or_missing_step_blocks_unless_forgiven(sandbox: Sandbox) -> None:
    found = codes(sandbox, *(installed(steps, **bodies) for steps, bodies, _ in STEPS))
    assert found == [code for *_, code in STEPS]


def test_a_broken_script_blocks(sandbox: Sandbox) -> None:
    texts = ("", "#!/bin/bash", "#!/bin/bash\n{\nexit 0\n", "#!/bin/bash\nexit 0")
    breaks = [
        f"rm {ROUTES}",
        f"chmod 644 {ROUTES}",
        *(f"printf '{text}' >{ROUTES}" for text in texts),
    ]
    fine = installed(f"{ROUTES} required", static_routes=PASS)
    assert codes(sandbox, fine, *(f"{fine}\n{each}" for each in breaks)) == [0] + [255] * len(
        breaks
    )
    assert (sandbox.root / "said").read_text().count("is truncated") == len(breaks)


def test_no_failing_system_call_opens_it(sandbox: Sandbox) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    # No locale is read, whose files would be most of what it opens.
    trace = (
        'LC_ALL=C strace --quiet=all -o "$ROOT/calls" -e "inject=$call:when=$n" "$@" 2>/dev/null; '
        "echo $?"
    )
    calls = "read:error=EIO write:error=EIO pipe2:error=EMFILE openat:error=EMFILE"
    each = (
        f"for call in {calls}; do n=1; while {trace}; "
        'grep -q INJECTED "$ROOT/calls"; do ((n++)); done; done'
    )
    prepare = installed(f"{ROUTES} required", static_routes=FAIL)
    codes = run(
        sandbox, prepare, text=gate(PASS_SECONDS=0), before=("bash", "-c", each, "bash")
    ).stdout.split()
    assert codes.count("255") > 20
    assert "0" not in codes


def test_every_truncation_behind_its_first_line_is_an_error(sandbox: Sandbox) -> None:
    lines = gate().splitlines(keepends=True)
    for count in range(2, len(lines), by_day(40, by_night=4)):
        assert run(sandbox, installed(""), text="".join(lines[:count]) + "\n").returncode != 0


def test_a_missing_list_admits_only_without_the_drop_in(sandbox: Sandbox) -> None:
    gone = f"{installed('', static_routes=FAIL)}\nmkdir -p {DROP_IN.rpartition('/')[0]}"
    assert run(sandbox, f"{gone}; echo ExecStartPost=another.sh >{DROP_IN}").returncode == 0
    done = run(sandbox, f"{gone}; echo ExecStartPre=+/etc/hostrouting/gate.sh last >{DROP_IN}")
    assert (done.returncode, done.stderr) == (
        255,
        (
            "/etc/hostrouting/gate.list is missing, can't be run, or is truncated; "
            "to write it again: hostrouting apply /etc/hostrouting/installed.json\n"
        ),
    )
    assert run(sandbox, f"{gone}; : >/etc/hostrouting/gate.list").returncode == 255
    # The list may be briefly missing during apply or remove, so the gate checks again.
    late = f"{gone}; echo gate.sh >{DROP_IN}; (sleep 0.5; rm {DROP_IN}) &"
    assert run(sandbox, late, text=gate(HOLD_SECONDS=60, ALL_SECONDS=60)).returncode == 0


LIST = "/etc/hostrouting/gate.list"
UNITS = "/etc/systemd/system"
STATS, READS = "newfstatat,faccessat2,statx", "openat"


@pytest.mark.parametrize("error", ["EIO", "ENOMEM", "EACCES"])
@pytest.mark.parametrize(
    ("calls", "paths", "removal"),
    [
        pytest.param(STATS, (LIST, DROP_IN), ":", id="no file is seen"),
        pytest.param(f"{STATS},{READS}", (LIST, DROP_IN), ":", id="no file is seen or read"),
        pytest.param(READS, (DROP_IN,), f"rm {LIST}", id="the drop-in isn't read"),
        pytest.param(READS, (UNITS, f"{UNITS}/"), f"rm {LIST}", id="the folder isn't read"),
    ],
)
def test_a_list_that_can_not_be_seen_admits_no_start(
    sandbox: Sandbox, error: str, calls: str, paths: tuple[str, ...], removal: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    drop_in = (
        f"mkdir -p {DROP_IN.rpartition('/')[0]}; "
        f"echo ExecStartPre=+{FOLDER}/gate.sh last >{DROP_IN}"
    )
    trace = (
        "strace",
        "-f",
        "--quiet=all",
        "-o",
        "/dev/null",
        *(word for path in paths for word in ("-P", path)),
    )
    prepare = f"{installed(f'{ROUTES} required', static_routes=FAIL)}; {drop_in}; {removal}"
    done = run(sandbox, prepare, before=(*trace, "-e", f"inject={calls}:error={error}"))
    assert done.returncode == 255


@pytest.mark.parametrize("name", ["INT", "QUIT", "TERM", "HUP"])
@pytest.mark.parametrize("body", ["exit 1", HANG], ids=["between two looks", "during a look"])
def test_a_stop_signal_ends_a_hold_at_once(sandbox: Sandbox, name: str, body: str) -> None:
    prepare = installed(f"{CHECK} required", check_route_overlap=f"touch /run/begun; {body}")
    kill = f"until [ -e /run/begun ]; do sleep 0.05; done; sleep 0.3; kill -{name} $$"
    if (
        name == "INT"
    ):  # bash loses about one SIGINT in 100 between two commands, but no other signal
        kill += f"; while sleep 0.5; do kill -{name} $$; done"
    begun = monotonic()
    assert run(sandbox, f"{prepare}\n({kill}) &", "hold").returncode == 255
    assert monotonic() - begun < 5


UPDATES = {
    f"{listed(f'{CHECK} forgiven')}; rm {ROUTES}": 0,
    f"{listed(f'{CHECK} required')}; rm {ROUTES}": 255,
    listed(f"{ROUTES} forgiven\n{CHECK} forgiven"): 0,
}


def test_a_start_follows_an_update_made_meanwhile(sandbox: Sandbox) -> None:
    """The update removes the routes step while its script is running; the remaining steps determine
    the exit code.
    """
    steps = f"{ROUTES} required\n{CHECK} required"
    firsts = (f"cd /etc/aks-flex-node; {update}; exit 1" for update in UPDATES)
    cases = (installed(steps, static_routes=first, check_route_overlap=FAIL) for first in firsts)
    assert codes(sandbox, *cases) == [*UPDATES.values()]


def test_an_update_made_by_a_later_step_repeats_the_earlier_ones(sandbox: Sandbox) -> None:
    """The check replaces the list, in which the script of the routes then has another checksum."""
    updated = "sed -i s/0123/4567/ /etc/hostrouting/gate.list"
    prepare = installed(
        f"{ROUTES} required\n{CHECK} required",
        static_routes=PASS,
        check_route_overlap=f"{updated}\n{PASS}",
    )
    done = run(sandbox, prepare)
    assert (done.returncode, done.stderr.count(ROUTES)) == (0, 2)


def test_a_failure_is_retried_and_reported_once(sandbox: Sandbox) -> None:
    again = "[ -e /run/tried ] && exit 0; : >/run/tried; exit 1"
    prepare = installed(f"{ROUTES} required", static_routes=again)
    assert run(sandbox, prepare, text=gate(HOLD_SECONDS=60, ALL_SECONDS=60)).returncode == 0
    done = run(sandbox, installed(f"{ROUTES} required"), text=gate(HOLD_SECONDS=1))
    assert (done.returncode, done.stderr.count("\n")) == (255, 1)


@pytest.mark.parametrize(("how", "code"), [("required", 255), ("forgiven", 0)])
def test_a_stuck_script_is_ended_in_time_with_a_marker(
    sandbox: Sandbox, how: str, code: int
) -> None:
    body = f'[ "$1" != unjudged ] || {{ echo "$2" >/run/marker; exit 1; }}\n{HANG}'
    done = run(
        sandbox, installed(f"{CHECK} {how}", check_route_overlap=body), text=gate(ALL_SECONDS=1)
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        code,
        "check-route-overlap.sh took more than 1 s",
    )
    assert (sandbox.root / "run/marker").read_text() == "check-failed: it took more than 1 s\n"


def test_a_forgiven_script_gets_most_of_the_start_timeout(sandbox: Sandbox) -> None:
    """systemd prints a timeout such as "3s 500ms"."""
    text = (
        gate()
        .replace("TIMEOUT=1h", "TIMEOUT='3s 500ms'")
        .replace("</proc/self/cgroup", '<"$ROOT/cgroup"')
    )
    prepare = (
        "echo 0::/x.service >$ROOT/cgroup\n"
        f"{installed(f'{CHECK} forgiven', check_route_overlap='sleep 0.7; echo seen')}"
    )
    assert run(sandbox, prepare, text=text).stderr == "seen\n"
    text = text.replace("TIMEOUT='3s 500ms'", "TIMEOUT=4s")
    done = run(sandbox, prepare.replace("sleep 0.7", "sleep 3"), text=text)
    assert done.stderr.splitlines()[-1] == "check-route-overlap.sh took more than 2 s"


OF_A_START = ("env", f"INVOCATION_ID={'a1' * 16}")
OF_ANOTHER = ("env", f"INVOCATION_ID={'b2' * 16}")


def test_a_start_that_has_passed_is_not_checked_again(sandbox: Sandbox) -> None:
    passes, fails = (
        installed(f"{ROUTES} required", static_routes=PASS),
        installed(f"{ROUTES} required"),
    )
    for word in ("again", "last"):
        assert run(sandbox, fails, word, before=OF_A_START).returncode == 255
    assert run(sandbox, passes, "hold", before=OF_A_START).returncode == 0
    for word in ("again", "last"):
        done = run(sandbox, passes, word, before=OF_A_START, text=gate(PASS_SECONDS=60))
        assert (done.returncode, done.stderr) == (0, "")
        # If the list changes after the gate has passed, the gate checks again.
        assert (
            run(sandbox, fails.replace("required", "forgive"), word, before=OF_A_START).returncode
            == 255
        )
        assert run(sandbox, fails, word, before=OF_ANOTHER).returncode == 255
        assert run(sandbox, fails, word).returncode == 255
    late = gate(PASS_SECONDS=-1)
    assert run(sandbox, fails, "last", text=late, before=OF_A_START).returncode == 255
    assert run(sandbox, fails, "again", text=late, before=OF_A_START).returncode == 0


def test_only_a_pass_leaves_a_file_and_old_files_go(sandbox: Sandbox) -> None:
    passed = sandbox.root / "run/aks-flex-node/passed"
    assert run(sandbox, installed(f"{ROUTES} required"), before=OF_A_START).returncode == 255
    assert not passed.exists()
    fine = installed(f"{ROUTES} required", static_routes=PASS)
    assert run(sandbox, fine, before=OF_A_START).returncode == 0
    assert [path.name for path in passed.iterdir()] == ["a1" * 16]
    (passed / "stray").write_text("some words\n")
    assert run(sandbox, fine, text=gate(KEPT_SECONDS=-1), before=OF_ANOTHER).returncode == 0
    assert [path.name for path in passed.iterdir()] == ["stray"]


def test_a_pass_stays_in_its_folder(sandbox: Sandbox) -> None:
    """The unit's environment names another user's file, which root neither reads nor writes."""
    named = ("env", "INVOCATION_ID=../../o/f")
    steps = f"{ROUTES} required"
    passes = f"mkdir -p /run/o /run/aks-flex-node/passed\n{installed(steps, static_routes=PASS)}"
    done = run(sandbox, passes, before=named)
    assert (done.returncode, (sandbox.root / "run/o/f").exists()) == (0, False)
    assert done.stderr.startswith("INVOCATION_ID is not systemd's: it counts as unset\n")
    forged = "{ echo 99999999999; cat /etc/hostrouting/gate.list; } >/run/o/f"
    assert run(sandbox, f"{passes}\n{installed(steps)}\n{forged}", before=named).returncode == 255


UNWRITABLE = "mkdir -p /run/aks-flex-node; mount -t tmpfs -o ro none /run/aks-flex-node"


def test_no_start_gets_through_without_a_pass(sandbox: Sandbox) -> None:
    fine = installed(f"{CHECK} forgiven", check_route_overlap=PASS)
    done = run(sandbox, f"{fine}\n{UNWRITABLE}", before=OF_A_START)
    assert done.returncode == 255
    assert "can't write the pass in /run/aks-flex-node/passed" in done.stderr
    for off in BREAK_GLASS.values():
        assert run(sandbox, f"{fine}\n{UNWRITABLE}\n{off}", before=OF_A_START).returncode == 0


UNKNOWN_LINES = (
    f"\n{ROUTES} required\nend\n",
    f"{ROUTES} required\n\nend\n",
    f"end\n{ROUTES} required\nend\n",
    f"{ROUTES} wanted\nend\n",
    f"{ROUTES}\nend\n",
    "routes required\nend\n",
    f"{ROUTES} required\nend\nend\n",
)


def test_a_list_with_unknown_lines_lets_no_start_through(sandbox: Sandbox) -> None:
    """This includes an empty line, which doesn't end the list."""
    fine = installed(f"{ROUTES} required", static_routes=PASS)
    cases = [
        f"{fine}\nprintf %s {quote(text)} >/etc/hostrouting/gate.list" for text in UNKNOWN_LINES
    ]
    assert codes(sandbox, *cases) == [255] * len(cases)
    said = (sandbox.root / "said").read_text()
    assert said.count(
        "/etc/hostrouting/gate.list is missing, can't be run, or is truncated"
    ) == len(cases)


def test_a_step_ends_despite_a_childs_open_output(sandbox: Sandbox) -> None:
    body = "echo begun >&2; setsid sleep 600 & exit 0"
    done = run(sandbox, installed(f"{ROUTES} required", static_routes=body))
    assert (done.returncode, done.stderr) == (0, "begun\n")


def test_a_hold_retries_until_the_fix_and_reports_once(sandbox: Sandbox) -> None:
    body = "[ ! -e /run/fixed ] || exit 0; echo $# >>/run/looks; echo shadowed >&2; exit 1"
    prepare = installed(f"{CHECK} required", check_route_overlap=body)
    process = sandbox.start(gate(), "hold", is_host=True, etc=True, prepare=prepare)
    looks = sandbox.root / "run/looks"
    until(lambda: looks.exists() and len(looks.read_text().split()) >= 6)
    (sandbox.root / "run/fixed").touch()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", f"shadowed\n{HELD}")
    # From the second check on, the script is told that the failure has already been reported.
    assert looks.read_text().split()[:3] == ["1", "2", "2"]


def test_a_hold_before_the_check_makes_it_leave_a_marker(sandbox: Sandbox) -> None:
    """Otherwise, the marker of an earlier success might remain."""
    check = '[ "$1" = gate ] || echo "$*" >>/run/marker'
    prepare = installed(f"{ROUTES} required\n{CHECK} required", check_route_overlap=check)
    fix = "until [ -e /run/marker ]; do sleep 0.1; done; rm /etc/hostrouting/gate.list"
    done = run(sandbox, f"{prepare}\n({fix}) &", "hold")
    assert (done.returncode, done.stderr.endswith(HELD)) == (0, True)
    assert (
        sandbox.root / "run/marker"
    ).read_text() == "unjudged check-failed: static-routes.sh holds the start\n"


BREAK_GLASS = {
    "the file /etc/hostrouting/gate.off is there": ": >/etc/hostrouting/gate.off",
    "the kernel was started with hostrouting.gate=off": (
        'echo "quiet hostrouting.gate=off ro" > "$ROOT/cmdline"; '
        'mount --bind "$ROOT/cmdline" /proc/cmdline'
    ),
}


@pytest.mark.parametrize("why", BREAK_GLASS)
def test_break_glass_admits_loudly(sandbox: Sandbox, why: str) -> None:
    steps = f"{ROUTES} required\n{CHECK} required"
    prepare = installed(
        steps, static_routes=FAIL, check_route_overlap='echo "$1 $2" >/run/marker; exit 1'
    )
    done = run(sandbox, f"{prepare}\n{BREAK_GLASS[why]}")
    assert (done.returncode, done.stderr) == (
        0,
        f"GATE OFF: {why}; the start is admitted and nothing was checked\n",
    )
    words = f"unjudged gate-off: {why}; the start was admitted and nothing was checked\n"
    assert (sandbox.root / "run/marker").read_text() == words


@pytest.mark.parametrize(("how", "code"), [("required", 255), ("forgiven", 0)])
def test_the_gate_does_nothing_in_the_consumers_network(
    sandbox: Sandbox, how: str, code: int
) -> None:
    # The outer bash is PID 1 here and stays in the host's network namespace.
    inside = ("bash", "-c", 'unshare --net "$@"; exit "$?"', "bash")
    words = "this unit has a network namespace of its own; the host is not seen from there"
    check = 'echo "$2" >/run/marker; exit 1'
    prepare = installed(
        f"{ROUTES} required\n{CHECK} {how}", static_routes=FAIL, check_route_overlap=check
    )
    done = run(sandbox, prepare, before=inside)
    assert done.returncode == code
    assert (
        done.stderr
        == f"{words}: static-routes.sh changed nothing\ncheck-route-overlap.sh: {words}\n"
    )
    assert (sandbox.root / "run/marker").read_text() == f"check-failed: {words}\n"
    cut = f"{prepare}\necho {ROUTES} >/etc/hostrouting/gate.list"
    assert run(sandbox, cut, "again", before=inside, text=gate(HOLD_SECONDS=1)).returncode == 255


TRIAL = (
    "mkdir -p /run/aks-flex-node; "
    "echo 'echo trial $1; rm /run/aks-flex-node/trial.json' >/run/aks-flex-node/trial.sh"
)


def test_a_trial_that_begins_between_two_steps_is_ended(sandbox: Sandbox) -> None:
    steps = f"{ROUTES} required\n{CHECK} required"
    begins = "touch /run/aks-flex-node/trial.json; exit 0"
    prepare = installed(
        steps, static_routes=begins, check_route_overlap="[ ! -e /run/aks-flex-node/trial.json ]"
    )
    done = run(sandbox, f"{TRIAL}\n{prepare}")
    assert (done.returncode, done.stderr) == (0, "trial gate\n")


@pytest.mark.parametrize("begin", ["touch", "mkdir", "ln -s nowhere"])
@pytest.mark.parametrize("how", ["exit 1", "rm /run/aks-flex-node/trial.sh", HANG])
def test_a_trial_that_does_not_end_fails_the_step(sandbox: Sandbox, how: str, begin: str) -> None:
    begun = (
        f"{TRIAL.replace('rm /run/aks-flex-node/trial.json', how)}; "
        f"{begin} /run/aks-flex-node/trial.json"
    )
    begun += f"; {how}" if how.startswith("rm") else ""
    prepare = installed(f"{ROUTES} required", static_routes="echo routes")
    done = run(sandbox, f"{begun}\n{prepare}", text=gate(ALL_SECONDS=1))
    assert done.returncode == 255
    assert (
        "a trial of routes is in progress, and can't be ended; to end it: hostrouting apply /"
        in done.stderr
    )


def test_a_signal_is_not_a_success(sandbox: Sandbox) -> None:
    """systemd treats termination by one of these signals, except SIGQUIT, as success. $(...) may
    lose a signal.
    """
    kills = (
        f"kill -{name} $(ps -o ppid= -p $PPID)" for name in ("TERM", "HUP", "PIPE", "INT", "QUIT")
    )
    bodies = (f"{kill}; exit {code}" for kill in kills for code in (0, 1))
    cases = (installed(f"{ROUTES} required", static_routes=body) for body in bodies)
    # bash's asynchronous subshell, which runs the script, ignores the last two.
    assert codes(sandbox, *cases) == [255, 255] * 3 + [0, 255] * 2
    assert not re.search(r"\$\((?!\()", re.sub(r"(?m)^ *#.*$", "", gate()))


@pytest.mark.parametrize(
    "variable",
    [
        "SHELLOPTS=noexec",
        "BASH_ENV=/etc/aks-flex-node/env",
        "BASH_FUNC_exit%%=() { command exit 0; }",
    ],
)
def test_the_gate_ignores_the_consumers_environment(sandbox: Sandbox, variable: str) -> None:
    prepare = f"{installed(f'{ROUTES} required', static_routes=FAIL)}\necho 'exit 0' >env"
    assert run(sandbox, prepare, before=("env", variable)).returncode == 255
    for name in ("static-routes.sh", "check-route-overlap.sh"):
        assert (
            (resources.files(PACKAGE) / "scripts" / name).read_text().startswith("#!/bin/bash -p\n")
        ), name


@pytest.mark.parametrize("arguments", [["first"], ["hold", "again"]])
def test_an_argument_that_is_not_known_is_an_error(sandbox: Sandbox, arguments: list[str]) -> None:
    assert run(sandbox, installed(""), *arguments).returncode == 255
