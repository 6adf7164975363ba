"""Test the real command line on a temporary host, also where the kernel refuses its calls or a
signal ends it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import attrs
import pytest
from command_line import CONFIG, KEEPING, on_a_host, script_on_a_host
from file_trees import write_file
from nightly import IS_NIGHTLY, by_day
from node import shadowed_kernel, until
from scenario import skip_without_other_users
from terminals import PATIENCE_SECONDS, Terminal, await_looks, opened

from hostrouting.boot.images import image_layout
from hostrouting.boot.layout import Layout
from hostrouting.boot.python import python_of, why_unsafe, why_unsuitable
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.errors import FileError

pytestmark = pytest.mark.kernel

HOST = os.uname().nodename

# The awaited route never comes. The pipe's reader can tell when the wait has begun.
WITHOUT_DEFAULT_ROUTE = r"""
sed -i 's/"waitSeconds": 0/"waitSeconds": 600/' "$CONFIG"
ip route del default
mkfifo "$SCRATCH/progress"
"""


def test_without_cap_net_admin_apply_is_77_and_check_works(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        before=$(ip -4 route show table all)
        hostrouting() {
          setpriv --bounding-set=-net_admin --inh-caps=-all "$PYTHON" -m hostrouting "$@"
        }
        hostrouting apply --routes-only "$CONFIG" || echo "apply: $?"
        hostrouting check --cidr 10.96.0.0/12
        [ "$before" = "$(ip -4 route show table all)" ] && echo as-before
        """,
    )
    assert done.stdout.splitlines() == [
        "apply: 77",
        f"ok on {HOST}: 0 of 1 expected CIDRs fail; mode WARN",
        "expected interface: eth0",
        "✓ 10.96.0.0/12  by eth0",
        "as-before",
    ]
    assert "can't add 172.16.1.0/24" in done.stderr
    assert "not permitted (kernel: Operation not permitted)" in done.stderr
    assert "hint: run as root (CAP_NET_ADMIN)" in done.stderr


def test_apply_under_nohup_outlives_the_session_that_started_it(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        WITHOUT_DEFAULT_ROUTE
        + r"""
        nohup "$PYTHON" -m hostrouting apply --routes-only "$CONFIG" \
          2> "$SCRATCH/progress" >/dev/null &
        {
          read -r line
          kill -HUP $!
          ip route add default via 10.1.0.1
          cat
        } < "$SCRATCH/progress"
        wait $! && echo "apply: $?"
        """,
    )
    assert done.stdout.splitlines()[-1] == "apply: 0"


def test_an_unprivileged_snapshot_gets_the_nodes_own_verdict(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        elsewhere() { unshare --net "$PYTHON" -m hostrouting "$@"; }
        cd "$SCRATCH"
        setpriv --bounding-set=-all --inh-caps=-all "$PYTHON" -m hostrouting snapshot > ours.json
        hostrouting check "$CONFIG" > live || echo "live: $?"
        elsewhere check "$CONFIG" --snapshot - < ours.json > judged || echo "judged: $?"
        grep -v '^note: the snapshot was taken at ' judged | cmp live -
        elsewhere check "$CONFIG" > judged || echo "elsewhere: $?"
        """,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["live: 1", "judged: 1", "elsewhere: 2"]


@pytest.mark.parametrize("folder", ["/etc", "/run/aks-flex-node"])
def test_an_image_with_this_hosts_folder_is_refused(tmp_path: Path, folder: str) -> None:
    done = on_a_host(
        tmp_path,
        f"""
        mkdir -p {folder} "$SCRATCH/image{folder}" "$SCRATCH/image/usr/lib/systemd/system"
        mount --bind {folder} "$SCRATCH/image{folder}"
        # Not everything is readable without root.
        changed() {{ find /etc -newer "$SCRATCH/image" 2>&1 || :; }}
        before=$(changed)
        hostrouting apply --root "$SCRATCH/image" "$CONFIG" || echo "exit code $?"
        [ "$before" = "$(changed)" ] && echo as-before
        """,
    )
    assert done.stdout == "exit code 78\nas-before\n", done.stderr
    assert "this host's own" in done.stderr


def test_a_check_in_another_network_says_so(tmp_path: Path) -> None:
    """PID 1 is the shell of the host."""
    done = on_a_host(
        tmp_path,
        r"""
        export PYTHON CONFIG
        unshare --pid --fork --kill-child --mount-proc bash -c '
          for enter in "env" "unshare --net"; do
            found=$($enter "$PYTHON" -m hostrouting check "$CONFIG" --output json | grep -c NETNS)
            echo "$enter: $found"
          done
        '
        """,
    )
    assert done.stdout.splitlines() == ["env: 0", "unshare --net: 1"]


@pytest.mark.parametrize("enter", ["unshare --net", "ip netns exec other"])
def test_a_watch_in_another_network_leaves_no_marker(tmp_path: Path, enter: str) -> None:
    """PID 1 is the shell of another host, which shares this host's files but not its network."""
    done = on_a_host(
        tmp_path,
        f"""
        ip netns add other
        export PYTHON CONFIG
        unshare --pid --fork --kill-child --mount-proc bash -c '
          {enter} timeout 20 "$PYTHON" -m hostrouting watch "$CONFIG" || echo "exit code $?"
        '
        ls /run/aks-flex-node
        """,
    )
    assert done.stdout.splitlines()[0] == "exit code 1", done.stdout
    assert "hint: to enter the host's: nsenter --target 1 --net" in done.stderr
    assert "route-overlap" not in done.stdout


# --- the Python of units and scripts --------------------------------------------------------------
# Root can run apply with a hostrouting that only PYTHONPATH names, but no unit or script runs that
# one.


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Create a Python without packages."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare/bin/python"


def run_apply(
    tmp_path: Path, python: Path, *words: str, **more: object
) -> subprocess.CompletedProcess[str]:
    script = r"""
        "$PYTHON" -m hostrouting apply "$@" "$CONFIG" || status=$?
        cat /etc/aks-flex-node/check-route-overlap.sh
        exit "${status-0}"
        """
    packages = os.pathsep.join(path for path in sys.path if path)
    config = {"hostRouting": CONFIG["hostRouting"] | more}
    return on_a_host(
        tmp_path, script, *words, config=config, PYTHON=str(python), PYTHONPATH=packages
    )


@pytest.mark.parametrize("is_bare", [True, False])
def test_only_a_package_of_every_environment_is_rendered(
    tmp_path: Path, bare: Path, is_bare: bool
) -> None:
    python = bare if is_bare else Path(sys.executable)
    done = run_apply(tmp_path, python)
    assert done.returncode == 0, done.stderr
    assert (f"{python} -I finds no hostrouting" in done.stderr) == is_bare
    assert ("readonly PYTHON=''\n" if is_bare else f"readonly PYTHON={python}\n") in done.stdout


def test_a_watcher_by_pythonpath_is_not_installed(tmp_path: Path, bare: Path) -> None:
    done = run_apply(tmp_path, bare, "--output", "json", watch={"enabled": True})
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert "-I finds no hostrouting" in document["error"]
    assert "watch.enabled" in document["hint"]
    assert not document["changed"]


def test_a_missing_python_is_never_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert python_of(Layout()) == ""


@pytest.mark.parametrize(("mode", "is_suitable"), [(0o755, True), (0o777, False), (0o1777, True)])
def test_a_python_that_others_can_replace_is_never_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, *, is_suitable: bool
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    python = write_file(folder / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    folder.chmod(mode)
    monkeypatch.setattr(sys, "executable", str(python))
    why = "" if is_suitable else f"a user other than root can change {folder}"
    assert why_unsuitable(Layout()) == why
    assert python_of(Layout()) == (str(python) if is_suitable else "")


SITE = "lib/python3.12/site-packages"
# What decides which code a Python in a virtual environment runs as root at boot.
DECISIVE = (
    *("bin/python", "pyvenv.cfg", "bin/pyvenv.cfg", SITE, f"{SITE}/a.pth", f"{SITE}/finder.py"),
    *(f"{SITE}/__pycache__/finder.pyc", f"{SITE}/attr", f"{SITE}/attr/_make.py"),
    *(f"{SITE}/attrs/__init__.py", f"{SITE}/phases/__pycache__", f"{SITE}/phases/_run.py"),
    *(f"{SITE}/hostrouting/boot/scripts/gate.sh", "source/hostrouting/__pycache__/a.pyc"),
    f"{SITE}/_hack/__init__.py",
)


@pytest.mark.parametrize("decisive", DECISIVE)
def test_no_other_user_may_change_what_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decisive: str
) -> None:
    for name in DECISIVE:
        if name not in (SITE, f"{SITE}/attr", f"{SITE}/phases/__pycache__"):
            write_file(tmp_path / name)
    write_file(tmp_path / f"{SITE}/phases/__pycache__/_run.pyc")
    write_file(tmp_path / f"{SITE}/another/package.py").chmod(0o666)  # nothing imports it
    lines = "# a comment\nimport os; __import__('_hack').add_shim();\n../../../source\n"
    write_file(tmp_path / f"{SITE}/a.pth", lines)
    (tmp_path / f"{SITE}/attr/circle").symlink_to(".")
    monkeypatch.setattr(sys, "executable", "/bin/python")
    image = Layout(tmp_path)
    assert why_unsuitable(image) == ""
    (tmp_path / decisive).chmod(0o777)
    why = f"a user other than root can change {tmp_path / decisive}"
    assert why_unsuitable(image) == why
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    assert why_unsafe() == why


LOOKS: dict[str, Callable[[Path], object]] = {
    "this Python": lambda _: why_unsafe(),
    "an image's Python": lambda closed: why_unsuitable(Layout(closed)),
    "an image": image_layout,
    "a symlink": lambda closed: Layout().followed(f"{closed}/python"),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_user_who_may_not_look_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], object]
) -> None:
    skip_without_other_users()
    closed = tmp_path / "closed"
    closed.mkdir(0o700)
    monkeypatch.setattr(sys, "executable", str(write_file(closed / "python", "")))
    os.seteuid(65534)
    try:
        with pytest.raises(FileError, match="can't .*: Permission denied") as caught:
            look(closed / "image")
    finally:
        os.seteuid(0)
    assert caught.value.is_not_permitted


# --- refused calls --------------------------------------------------------------------------------

PROGRAM = Path(__file__).parents[1] / "support/refusing.py"
PARTS = by_day(1, by_night=8)
UNSEEN = r"""
hostrouting apply "$CONFIG" >"$SCRATCH/said" 2>&1
ours() {
  find /etc/aks-flex-node /etc/hostrouting /etc/systemd/system \
    -name '*hostrouting.conf' -o -name '*route*' -o -name 'gate*' -o -name installed.json
  ip route show proto 217
}
blind() {
  status=0
  strace --quiet=all -o /dev/null -e trace=newfstatat -e "inject=newfstatat:error=$2" -P "$1" \
    "$PYTHON" -m hostrouting remove >"$SCRATCH/said" || status=$?
}
before=$(ours)
blind /etc/systemd/system/systemd-nspawn@.service.d/00-hostrouting.conf EIO
[ "$before" = "$(ours)" ] && echo "all is there: $status"
blind /etc/aks-flex-node/check-route-overlap.sh ENAMETOOLONG
echo "left: $status" $(ours)
hostrouting remove >"$SCRATCH/said"
echo "left: $?" $(ours 2>"$SCRATCH/said")
"""


@pytest.mark.timeout(by_day(300, by_night=7200))
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "command",
    ["apply", "remove", "start", *(["try", "confirm", "revert", "watch"] if IS_NIGHTLY else [])],
)
def test_a_refused_call_is_a_clear_error(tmp_path: Path, command: str, part: int) -> None:
    """Check that each failing call leaves either all or none of the changes, and that the next run
    repairs the rest.

    The test fails every call after a command's first access to the host, with each errno that the
    call can return. Earlier calls and later imports are Python's own reads, which are the same for
    each command. Only ``start`` covers them, with one call for each combination of call, errno and
    kind of path, before the config is read, before the first change, and after it. Each distinct
    leftover state is repaired only once.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    words = (PROGRAM, tmp_path / "config.json", command, by_day(1, by_night=0), part, PARTS)
    # Sets must have the same iteration order in all parts.
    run = 'exec "$PYTHON" "$@"'
    done = on_a_host(tmp_path, run, *map(str, words), config=KEEPING, PYTHONHASHSEED="0")
    assert done.returncode == 0, done.stderr
    count, *lines = done.stdout.splitlines()
    reports = [json.loads(line) for line in lines]
    assert int(count) > 100
    # The command succeeds without some of the calls, of which one may be the only one chosen.
    explained = [report for report in reports if report["line"] or len(reports) == 1]
    assert len(explained) >= len(reports) * 2 / 3 > 0
    for report in reports:
        assert report["wrong"] == [], report


def test_an_unreadable_file_prevents_no_other_removal(tmp_path: Path) -> None:
    """An unreadable gate drop-in is an exception: it keeps everything, as it would hold every start
    without gate.sh.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    done = on_a_host(tmp_path, UNSEEN)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("hostrouting: can't look at ") == 2, done.stderr
    assert done.stdout.splitlines() == [
        "all is there: 1",
        "left: 1 /etc/aks-flex-node/check-route-overlap.sh /etc/hostrouting/installed.json",
        "left: 0",
    ]


UPGRADE = r"""
mkdir -p /run/systemd/system
printf '#!/bin/sh\n' >"$SCRATCH/bin/py3compile"
chmod +x "$SCRATCH/bin/py3compile"
sh "$1" configure 0.1.0
echo installed
touch /etc/systemd/system/hostrouting-watch.service
sh "$1" configure 0.1.0
sh "$1" configure
"""


def test_an_upgrade_restarts_only_an_installed_watcher(tmp_path: Path) -> None:
    postinst = Path(__file__).parents[2] / "deploy/debian/postinst"
    done = on_a_host(tmp_path, UPGRADE, str(postinst), SYSTEMCTL='echo "$@"; exit 1')
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1), done.stderr
    assert done.stdout.splitlines() == ["installed", "try-restart hostrouting-watch.service"]


# --- signals --------------------------------------------------------------------------------------

HANGING = r"""
"$PYTHON" -m hostrouting "$@" "$CONFIG" &
until [ -e "$SCRATCH/asked" ]; do sleep 0.05; done
kill -TERM "$!"
wait "$!" || echo "$?"
find /etc -path '*hostrouting*' -o -name 'static-routes*' -o -name 'check-route-overlap*'
ip route show proto 217
"""
# This fake systemctl answers queries but hangs on daemon-reload, when there are already changes to
# roll back.
NEVER = ': >"$SCRATCH/asked"; exec sleep 1000'
NO_ORDER = (
    f"case $1 in show) echo LoadState=not-found ;; is-*) exit 3 ;; daemon-reload) {NEVER} ;; esac"
)
# Shells start background processes with SIGINT ignored.
COMMAND = ("env", "--default-signal=INT", sys.executable, "-m", "hostrouting")


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command with so small a pipe that the demo can't end before its output is read."""
    return subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=4096,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )


def await_child(process: subprocess.Popen[str]) -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: bool(children.read_text()))


@pytest.mark.parametrize("moment", ["as it starts", "as it tells"])
def test_an_interrupted_demo_leaves_no_traceback(tmp_path: Path, moment: str) -> None:
    with start(tmp_path, "demo") as process:
        if moment == "as it starts":
            await_child(process)
        else:
            assert process.stdout is not None
            os.read(process.stdout.fileno(), 1)
        os.killpg(process.pid, signal.SIGINT)
        complaint = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert (process.returncode, complaint) == (-signal.SIGINT, "")
    assert [*tmp_path.iterdir()] == []


# Sends SIGINT to this process when it imports its Nth module, and says if there are fewer. What the
# package imports before its entry point runs, the first ones, takes a millisecond.
INTERRUPTED = """
import os, runpy, signal, sys
left = int(sys.argv.pop(1))
first = {"__future__", "hostrouting.model", "hostrouting.model.version", "gc"}
def see(event, words):
    global left
    if event == "import" and "hostrouting._lazy" in sys.modules and words[0] not in first and left:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(see)
try:
    runpy.run_module("hostrouting", run_name="__main__", alter_sys=True)
finally:
    os.write(1, b"left" if left else b"")
"""


def test_an_interrupted_import_leaves_no_traceback(tmp_path: Path) -> None:
    recorded = tmp_path / "node.json"
    recorded.write_text(take_snapshot(shadowed_kernel()).to_text())
    words = ("check", "--cidr", "172.16.0.0/16", "--snapshot", str(recorded))
    for number in range(1, 10_000, by_day(40, by_night=1)):
        argv = [
            "env",
            "--default-signal=INT",
            sys.executable,
            "-c",
            INTERRUPTED,
            str(number),
            *words,
        ]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        if done.stdout.endswith("left"):
            return
        assert (done.returncode in (-signal.SIGINT, 2), "Traceback" in done.stderr) == (
            True,
            False,
        ), (
            number,
            done.stderr,
        )
    pytest.fail("it never ended")


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    (caught,) = re.findall(
        r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_an_interrupted_judge_leaves_no_traceback(tmp_path: Path) -> None:
    recorded, config = tmp_path / "node.json", tmp_path / "config.json"
    recorded.write_text(take_snapshot(shadowed_kernel()).to_text())
    config.write_text(
        json.dumps({"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}})
    )
    with start(tmp_path, "judge", str(config), *[str(recorded)] * 5000) as process:
        until(lambda: catches(process.pid, signal.SIGHUP))  # it has begun: this handler is the last
        os.killpg(process.pid, signal.SIGINT)
        complaints = process.communicate(timeout=PATIENCE_SECONDS)[1].splitlines()
    assert process.returncode == 2
    # A second line says if a batch of snapshots was being judged.
    assert complaints[0].partition(";")[0] == "hostrouting: stopped: SIGINT"
    assert all(line.startswith("hostrouting: while it ran ") for line in complaints[1:])


@pytest.mark.parametrize(
    ("command", "systemctl"), [("plan", NEVER), ("apply", NO_ORDER)], ids=["query", "order"]
)
def test_a_signal_ends_the_wait_for_systemd(tmp_path: Path, command: str, systemctl: str) -> None:
    """The command doesn't wait for the 60 s systemd timeout."""
    done = on_a_host(tmp_path, HANGING, command, SYSTEMCTL=systemctl)
    assert "stopped: SIGTERM" in done.stderr, done.stderr
    assert done.stdout == "1\n"


# --- a full or stopped terminal -------------------------------------------------------------------

WAIT = r"""
set +e
eval "$PREPARE" >&2
"$PYTHON" -m hostrouting "$@" <"$TERMINAL" >"$TERMINAL" 2>"$TERMINAL" 9>&- &
echo $!
wait $!
echo $?
exec 9>&-
if [ ! -e /run/aks-flex-node/run.lock ] || flock -n /run/aks-flex-node/run.lock true; then
  echo free
fi
jobs -p | xargs -r kill
"""
NO_DEFAULT_ROUTE = "ip route del default"
HELD = "mkdir -p /run/aks-flex-node; exec 9>/run/aks-flex-node/run.lock; flock 9"
# This makes the watcher print something.
CONTESTED = "while sleep 0.2; do ip route flush proto 217; done &"
PROBE = {
    "hostNetworking": {
        "loadBalancerProbe": {"enabled": True, "devices": ["eth0"], "ipv6Detection": "ALWAYS"}
    }
}


@attrs.frozen
class Waiting:
    """A waiting command and the output that precedes its wait."""

    words: tuple[str, ...]
    shows: bytes
    prepare: str = NO_DEFAULT_ROUTE
    code: int = 1


COMMANDS = {
    "apply": Waiting(("apply",), b"waiting up to 600 s"),
    "apply -v": Waiting(("apply", "--routes-only", "-v"), b"waiting up to 600 s"),
    "check": Waiting(("check",), b"waiting up to 600 s", code=2),
    "watch": Waiting(("watch",), b"static routes to keep", prepare=CONTESTED, code=0),
    "lb-probe": Waiting(("lb-probe", "apply"), b"waiting for another run", prepare=HELD),
    "remove": Waiting(("remove",), b"waiting for another run", prepare=HELD),
}


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with opened() as made:
        yield made


TRIED = [*product(COMMANDS, ("Ctrl-S", "full"), (signal.SIGTERM, signal.SIGHUP))]


# By day: apply, watch and remove, with both ways to stall and both signals.
@pytest.mark.parametrize(("command", "how", "number"), TRIED if IS_NIGHTLY else TRIED[3::9])
def test_a_signal_ends_a_waiting_command(
    tmp_path: Path, terminal: Terminal, command: str, how: str, number: signal.Signals
) -> None:
    waiting = COMMANDS[command]
    document = json.loads(
        json.dumps(CONFIG | PROBE).replace('"waitSeconds": 0', '"waitSeconds": 600')
    )
    words = [*waiting.words, *([] if command == "remove" else [str(tmp_path / "config.json")])]
    more = {"TERMINAL": terminal.path, "PREPARE": waiting.prepare, "TERM": "xterm"}
    with subprocess.Popen(
        **script_on_a_host(tmp_path, WAIT, *words, config=document, **more)
    ) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        try:
            terminal.read_until(waiting.shows)
            terminal.stall(how)
            await_looks(pid)
            os.kill(pid, number)
            said = shell.communicate(timeout=PATIENCE_SECONDS)[0]
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
    assert said.splitlines() == [str(waiting.code), "free"]
