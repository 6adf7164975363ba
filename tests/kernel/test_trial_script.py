"""Test the script that ends a trial, run by systemd's timer or the gate, on a real kernel."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from nightly import by_day
from node import UPLINK, attempt, build_node6, on_linux, run_ip, run_ip6
from scripts import AWKS, Sandbox, awk_or_skip, other_ip, render_static_routes_script
from wanted import config
from worlds import Question
from worlds.cut import questions

from hostrouting import Config
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_routes
from hostrouting.model.routes import Table
from hostrouting.tasks.trial import render_trial

pytestmark = pytest.mark.kernel

UNTIL = "2026-11-21T12:00:00Z"
ROUTES = "/etc/aks-flex-node/static-routes.sh"
INSTALLED = f'mkdir -p {ROUTES.rpartition("/")[0]}; cp "$ROOT/installed.sh" {ROUTES}'
X, Y, Z, KEPT = ({"destination": f"172.16.{n}.0/24"} for n in (1, 2, 3, 4))
# A route that leads to a gateway, and one by that gateway.
NEAR = {"destination": "192.0.2.0/24", "gateway": "onlink", "dev": "eth0"}
BEHIND = {"destination": "172.16.4.0/24", "gateway": "192.0.2.1", "dev": "eth0", "metric": 7}
CHANGED = X | {"gateway": "10.1.0.9", "dev": "eth0"}


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """Create trial.json for a running trial and return its path."""
    path = tmp_path / "run/aks-flex-node/trial.json"
    path.parent.mkdir(parents=True)
    begin(path)
    return path


def begin(trial: Path) -> None:
    trial.write_text(json.dumps({"until": UNTIL, "uptime": 1}))


def ours(kernel: NamespaceKernel) -> set[str]:
    return {str(route) for route in read_routes(kernel, Table.MAIN) if route.is_ours}


def change_routes(sandbox: Sandbox, routes: Sequence[dict[str, Any]]) -> str:
    """Install routes in the kernel, and return the script for them."""
    text = render_static_routes_script(routes)
    trial = sandbox.root / "run/aks-flex-node/trial.json"
    trial.unlink(missing_ok=True)
    done = sandbox.run(text)
    assert (done.returncode, done.stderr) == (0, "")
    begin(trial)
    return text


def end(
    sandbox: Sandbox, installed: str | None, *arguments: str, prepare: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the trial's script where this routes script is installed."""
    if installed is not None:
        (sandbox.root / "installed.sh").write_text(installed)
        prepare = f"{INSTALLED}\n{prepare}"
    return sandbox.run(render_trial(UNTIL), *arguments, etc=True, prepare=prepare)


# --- which routes are there afterwards ------------------------------------------------------------


@pytest.mark.parametrize("word", [(), ("gate",)])
@pytest.mark.parametrize("listed", [[], [X, Y, NEAR, BEHIND]], ids=["bare", "installed"])
def test_the_installed_routes_alone_remain(
    node: NamespaceKernel,
    sandbox: Sandbox,
    trial: Path,
    listed: list[dict[str, Any]],
    word: tuple[str, ...],
) -> None:
    """Routes of ``apply --routes-only``, which no script lists, go as well.

    Other programs' routes stay.
    """
    installed = change_routes(sandbox, listed) if listed else None
    before = {*read_routes(node)}
    change_routes(sandbox, [CHANGED, Z, {"destination": "172.16.5.7/32", "metric": 3}])
    run_ip(
        "route add 172.16.8.0/24 via 10.1.0.1 dev eth0 proto 217",
        "route add 172.16.9.0/24 dev eth0 proto static",
    )
    done = end(sandbox, installed, *word)
    assert (done.returncode, done.stderr, trial.exists()) == (0, "", False)
    (other,) = {*read_routes(node)} - before
    assert str(other).startswith("172.16.9.0/24 ")
    assert before <= {*read_routes(node)}
    assert done.stdout.splitlines()[-1] == f"the trial of routes until {UNTIL} has ended"


# The installed routes, the tried ones, what another program does, the routes that stay, and a part
# of the error.
Rows = list[dict[str, Any]]
FAILED: dict[str, tuple[Rows, Rows, str, Rows, str]] = {
    "no default route": (
        [X],
        [X, X | {"metric": 7}, Z],
        "route del default",
        [X],
        "the default route",
    ),
    "a device that is down": (
        [X | {"gateway": "10.2.0.1", "dev": "eth1"}, Y],
        [CHANGED, Z],
        "link set eth1 down",
        [],
        "eth1 (it is down)",
    ),
    "another route in the way": (
        [KEPT, X, Y],
        [KEPT, CHANGED, Z],
        "route add 172.16.2.0/24 dev eth0 proto static",
        [KEPT],
        "can't install 172.16.2.0/24",
    ),
}


@pytest.mark.parametrize(
    ("listed", "tried", "meanwhile", "left", "why"), FAILED.values(), ids=FAILED
)
def test_where_the_installed_routes_can_not_be_added_the_tried_ones_go(
    node: NamespaceKernel,
    sandbox: Sandbox,
    trial: Path,
    listed: Rows,
    tried: Rows,
    meanwhile: str,
    left: Rows,
    why: str,
) -> None:
    """A route that the trial has changed isn't as listed.

    The script doesn't wait, because a trial must end in time.
    """
    installed = change_routes(sandbox, listed)
    before = ours(node)
    change_routes(sandbox, tried)
    run_ip(meanwhile)
    others = {route for route in read_routes(node) if not route.is_ours}
    done = end(sandbox, installed)
    assert (done.returncode, trial.exists()) == (1, False)
    (line,) = done.stderr.splitlines()
    assert why in line
    kept = tuple(f"{each['destination']} " for each in left)
    assert ours(node) == {route for route in before if route.startswith(kept)}
    assert {route for route in read_routes(node) if not route.is_ours} == others


def test_the_routes_of_both_families_go(
    kernel: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    """The installed script lists none in IPv6. The hops of other programs stay."""
    build_node6()
    run_ip(UPLINK)
    installed = change_routes(sandbox, [X])
    backend = NetlinkBackend6()
    before, before6 = ours(kernel), read_routes(backend)
    change_routes(
        sandbox,
        [
            Z,
            *(
                {"destination": f"fd00:{n}::/48", "gateway": "fd00:a::1", "dev": "eth0"}
                for n in (1, 2)
            ),
        ],
    )
    run_ip6("route append fd00:2::/48 via fd00:b::1 dev ib0 metric 512 proto static")
    done = end(sandbox, installed)
    assert (done.returncode, done.stderr, trial.exists(), ours(kernel)) == (0, "", False, before)
    (joined,) = {*read_routes(backend)} - {*before6}
    assert [str(hop.gateway) for hop in joined.hops] == ["fd00:b::1"]


def test_ipv6_routes_by_the_listed_gateway_stay_without_a_default(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    run_ip6(
        "address add fd00:a::4/64 dev eth0 nodad", "route replace default via fd00:a::9 dev eth0"
    )
    rows = [{"destination": f"fd00:{n}::/48", "gateway": "fd00:a::1"} for n in (1, 2)]
    installed = change_routes(sandbox, rows)
    change_routes(sandbox, [rows[0], rows[1] | {"gateway": "fd00:a::2"}])
    run_ip6("route del default")
    assert end(sandbox, installed).returncode == 1
    left = [route for route in read_routes(NetlinkBackend6(), Table.MAIN) if route.is_ours]
    assert [str(route.destination) for route in left] == ["fd00:1::/48"]


@pytest.mark.parametrize(
    "damage",
    ["truncate -s 900 {}", "truncate -s -1 {}", ": >{}", "rm {0}; mkdir {0}"],
    ids=["cut", "1 byte", "empty", "folder"],
)
def test_where_the_script_is_damaged_none_of_ours_remain(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path, damage: str
) -> None:
    """The former installation is unknown, and the trial's routes must go in time.

    At a boot, none would be installed.
    """
    before = set(read_routes(node))
    installed = change_routes(sandbox, [X])
    change_routes(sandbox, [X, Z])
    done = end(sandbox, installed, prepare=damage.format(ROUTES))
    assert (done.returncode, trial.exists()) == (1, False)
    assert set(read_routes(node)) == before
    (line,) = done.stderr.splitlines()
    assert ROUTES in line
    assert "hostrouting apply /etc/hostrouting/installed.json" in line


# --- how it ends ----------------------------------------------------------------------------------


SIGNALS = ("KILL", "TERM", "HUP")


@pytest.mark.parametrize("turn", range(by_day(1, by_night=len(SIGNALS))))
@pytest.mark.parametrize(
    "fault", ["", '[ "$calls" != 3 ] || exit 2; '], ids=["", "after a failed attempt"]
)
def test_an_end_that_is_interrupted_anywhere_is_repeated(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path, turn: int, fault: str
) -> None:
    """A signal goes to all processes of the unit: by night each, at each call of ip in turn, and by
    day one of three, at every second call.
    """
    installed = change_routes(sandbox, [X, Y])
    before = {*read_routes(node)}
    for position in count(1, by_day(2, by_night=1)):
        change_routes(sandbox, [CHANGED, Z])
        (sandbox.root / "calls").unlink(missing_ok=True)
        signal = SIGNALS[(position + turn) % len(SIGNALS)]
        change = f"{fault}[ $calls != {position} ] || {{ trap '' TERM HUP; kill -{signal} 0; }}"
        done = end(sandbox, installed, prepare=other_ip(change))
        is_interrupted = done.returncode < 0 or position == 3
        if trial.exists():
            again = end(sandbox, installed, *[(), ("gate",)][position // 2 % 2])
            assert (again.returncode, again.stderr) == (0, "")
        assert ({*read_routes(node)}, trial.exists()) == (before, False), (position, done)
        if not is_interrupted:
            break
    assert position >= 4


def test_a_trial_lasts_while_nothing_can_be_changed(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    installed = change_routes(sandbox, [X])
    change_routes(sandbox, [Z])
    there = ours(node)
    failing = (
        'echo "RTNETLINK answers: Input/output error" >&2; exit 2',
        "case $* in *-force*) exit 2 ;; esac",
    )
    for change in failing:
        refuse = other_ip(change)
        done = end(sandbox, None if "force" in change else installed, "gate", prepare=refuse)
        assert (done.returncode, trial.exists(), ours(node)) == (1, True, there)
        assert "can't end the trial of routes: " in done.stderr
    assert end(sandbox, installed, "gate").returncode == 0
    assert {line.split()[0] for line in ours(node)} == {"172.16.1.0/24"}


def test_nobody_else_gets_the_lock_before_the_end(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    installed = change_routes(sandbox, [X])
    change_routes(sandbox, [Z])
    look = (
        "[ ! -e /run/aks-flex-node/trial.json ] || "
        "! flock -n /run/aks-flex-node/lock true || touch $ROOT/free"
    )
    done = end(sandbox, installed, prepare=other_ip(look))
    assert (done.returncode, done.stderr, trial.exists()) == (0, "", False)
    assert not (sandbox.root / "free").exists()


def test_a_signal_after_an_undo_is_heeded(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    installed = change_routes(sandbox, [X, Y])
    change_routes(sandbox, [Z])
    stopped = '[ "$calls" != 4 ] || exit 2; [ "$calls" != 6 ] || kill -TERM $PPID'
    done = end(sandbox, installed, "gate", prepare=f'rm -f "$ROOT/calls"; {other_ip(stopped)}')
    assert (done.returncode, trial.exists()) == (1, True)
    assert "stopped: SIGTERM" in done.stderr


@pytest.mark.parametrize("is_link", [False, True])
def test_a_damaged_trial_is_ended(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path, *, is_link: bool
) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    if is_link:
        trial.unlink()
        trial.symlink_to("nowhere")
    else:
        trial.write_text("{")
    done = end(sandbox, None, "gate")
    assert (done.returncode, done.stderr) == (0, "")
    assert (os.path.lexists(trial), ours(node)) == (False, set())


@pytest.mark.parametrize("state", ["over", "another"])
def test_ended_and_other_trials_are_left_alone(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path, state: str
) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    there = ours(node)
    if state == "over":
        trial.unlink()
    else:
        trial.write_text(json.dumps({"until": UNTIL.replace("12", "13"), "uptime": 1}))
    done = end(sandbox, None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ours(node) == there
    assert trial.exists() == (state == "another")


def test_a_trials_end_makes_the_check_write_a_marker(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    """The old marker may describe the trial's routes. At the gate, a check follows in any case."""
    check = "/etc/aks-flex-node/check-route-overlap.sh"
    prepare = f"printf '#!/bin/sh\\necho judged $*\\n' >{check}; chmod 755 {check}"
    installed = render_static_routes_script([X])
    for is_refused in (False, True):
        if is_refused:
            run_ip("route del default")
        for arguments, last in (
            ((), "judged gate"),
            (("gate",), f"the trial of routes until {UNTIL} has ended"),
        ):
            begin(trial)
            done = end(sandbox, installed, *arguments, prepare=prepare)
            assert (done.returncode, trial.exists()) == (int(is_refused), False)
            assert done.stdout.splitlines()[-1] == last


def test_it_waits_for_the_lock_except_at_the_gate(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    text = render_trial(UNTIL)
    text = text.replace("readonly GATE_SECONDS=5", "readonly GATE_SECONDS=1")
    text = text.replace("readonly LOCK_SECONDS=60", "readonly LOCK_SECONDS=1")
    with (trial.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        at_the_gate = sandbox.run(text, "gate")
        assert at_the_gate.returncode == 1
        assert "another run has held the lock" in at_the_gate.stderr
        process = sandbox.start(text)
        assert process.stderr is not None
        assert "can't end the trial of routes" in process.stderr.readline()
        assert trial.exists()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert ours(node) == set()


def test_a_start_ends_a_trial_if_its_confirm_was_killed(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    claimed = trial.rename(trial.with_name("trial.confirmed.json"))
    text = render_trial(UNTIL).replace("readonly GATE_SECONDS=5", "readonly GATE_SECONDS=1")
    with (trial.parent / "run.lock").open("w") as lock:
        # The held lock indicates that a confirm is in progress.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = sandbox.run(text, "gate")
        assert (done.returncode, claimed.exists(), ours(node) != set()) == (1, True, True)
        assert "another run has held the lock /run/aks-flex-node/run.lock for 1 s" in done.stderr
    done = sandbox.run(
        text, "gate", prepare='mount --bind /bin/false "$(readlink -f "$(command -v mv)")"'
    )
    assert (done.returncode, claimed.exists(), ours(node) != set()) == (1, True, True)
    done = sandbox.run(text, "gate")
    assert (done.returncode, done.stderr, ours(node)) == (0, "", set())
    assert not claimed.exists()
    assert not trial.exists()


def test_a_killed_confirm_is_completed_or_undone(
    node: NamespaceKernel, sandbox: Sandbox, trial: Path
) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    claimed = trial.rename(trial.with_name("trial.confirmed.json"))
    python = sandbox.root / "python"
    python.write_text('#!/bin/sh\necho "$@"\nrm /run/aks-flex-node/trial.json\n')
    python.chmod(0o755)
    text = render_trial(UNTIL)
    (line,) = [line for line in text.splitlines() if line.startswith("readonly PYTHON=")]
    lock = trial.with_name("run.lock")
    lock.mkdir()
    process = sandbox.start(text.replace(line, f"readonly PYTHON={python}"))
    assert process.stderr is not None
    assert "can't open the lock /run/aks-flex-node/run.lock" in process.stderr.readline()
    lock.rmdir()
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out, lock.stat().st_mode & 0o777) == (
        0,
        "-I -m hostrouting confirm\n",
        0o600,
    )
    assert ours(node) != set()
    claimed.write_text(json.dumps({"until": UNTIL, "uptime": 1}))
    sandbox.run(text.replace(line, "readonly PYTHON=/nowhere"))
    assert ours(node) == set()
    assert not claimed.exists()
    assert not trial.exists()


# --- random hosts ---------------------------------------------------------------------------------


def halves_of(cidr: IPv4Network) -> list[IPv4Network]:
    return [cidr, *cidr.subnets()] if cidr.prefixlen < 32 else [cidr]


def configs(question: Question) -> st.SearchStrategy[Config]:
    """Return configs with routes for the expected CIDRs and their halves."""
    entries = st.fixed_dictionaries(
        {
            "destination": st.sampled_from(
                [str(each) for cidr in question.cidrs for each in halves_of(cidr)]
            ),
            "gateway": st.sampled_from(("",) * 8 + ("onlink",)),
            "dev": st.sampled_from(("",) * 8 + ("eth0",)),
            "metric": st.sampled_from((0, 0, 0, 10, 20)),
        }
    )
    some = st.lists(
        entries,
        min_size=1,
        max_size=6,
        unique_by=lambda each: (each["destination"], each["metric"]),
    )
    return some.map(lambda routes: config(*routes, cidrs=(), mode="WARN"))


@pytest.mark.timeout(by_day(120, by_night=1800))
@settings(max_examples=by_day(6, by_night=1500), suppress_health_check=list(HealthCheck))
@given(data=st.data(), question=st.one_of(questions(), questions(has_objects=True)))
def test_a_trial_on_any_host_leaves_the_installed_routes(
    data: st.DataObject, question: Question
) -> None:
    """Something else may change meanwhile.

    Then the end installs what the installed script can install, or no route.
    """
    installed, tried = data.draw(configs(question)), data.draw(configs(question))
    is_bare = data.draw(st.sampled_from([False] * 4 + [True]))
    wanted, others = (
        {str(each.destination) for each in one.static_routes.routes} for one in (installed, tried)
    )
    there = min(wanted - others or wanted)
    meanwhile = data.draw(
        st.sampled_from(["", "", "route del default", f"route add {there} dev eth0 proto static"])
    )
    text = render_static_routes(installed)
    kernel = on_linux()
    question.world.build(kernel)
    with TemporaryDirectory() as folder:
        sandbox = Sandbox(Path(folder), awk_or_skip(data.draw(st.sampled_from(AWKS))))
        if not is_bare and sandbox.run(text).returncode:
            event("refused")
            return
        before = sorted(map(str, read_routes(kernel)))
        if sandbox.run(render_static_routes(tried)).returncode:
            event("refused on trial")
            return
        event("changed" if sorted(map(str, read_routes(kernel))) != before else "unchanged")
        if meanwhile:
            attempt("ip", *meanwhile.split())
        trial = sandbox.root / "run/aks-flex-node/trial.json"
        begin(trial)
        done = end(sandbox, None if is_bare else text)
        assert not trial.exists()
        event(f"{meanwhile[:9]}, exit {done.returncode}{', bare' if is_bare else ''}")
        listed = (
            set()
            if is_bare
            else {(str(each.destination), each.metric) for each in installed.static_routes.routes}
        )
        left = {
            (str(each.destination), each.metric)
            for each in read_routes(kernel, Table.MAIN)
            if each.is_ours
        }
        if not meanwhile:
            assert (done.returncode, sorted(map(str, read_routes(kernel)))) == (0, before), done
        elif done.returncode:
            assert sandbox.run(text).returncode == 1
            assert left <= listed
            assert len(done.stderr.splitlines()) == 1
        elif is_bare:
            assert not left
        else:
            assert sandbox.run(text).stdout == "nothing to change\n"
            assert left <= listed
