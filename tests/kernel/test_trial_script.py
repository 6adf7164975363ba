"""Test the script that ends a trial, run by systemd's timer or the gate, on a real kernel."""

from __future__ import annotations

import fcntl
import json
from ipaddress import IPv4Network
from pathlib import Path

import attrs
import pytest
from acting import ActingSystemd
from node import build_node6, run_ip, run_ip6
from scripts import AWKS, Sandbox, awk_or_skip, other_ip, with_constants
from wanted import config

import phases
from hostrouting import Configure, Host, Layout
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.family import Family
from hostrouting.model.routes import NextHop, Protocol, Route, Scope, Table
from hostrouting.tasks import EndTrial, TryRoutes
from hostrouting.tasks.trial import render_trial

pytestmark = pytest.mark.kernel

UNTIL = "2026-11-21T12:00:00Z"
FAMILIES = (Family.IPV4,)


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """Create trial.json for a running trial and return its path."""
    path = tmp_path / "run/aks-flex-node/trial.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"until": UNTIL, "uptime": 1}))
    return path


def ours(kernel: NamespaceKernel) -> set[str]:
    return {str(route) for route in kernel.routes(Table.MAIN) if route.is_ours}


def test_a_revert_succeeds_where_the_trial_had_several_hops(
    node: NamespaceKernel, tmp_path: Path, sandbox: Sandbox
) -> None:
    """To install the former route beside these hops, which may be another program's, would be refused."""
    run_ip6("address add fd00:a::4/64 dev eth0 nodad")
    run_ip6("route replace default metric 1024 nexthop via fd00:a::1 dev eth0 nexthop via fd00:a::2 dev eth0")
    layout = Layout(tmp_path)

    def act(call: str, *given: object) -> None:
        if (call, *given) == ("restart", "hostrouting-trial.service"):
            assert sandbox.run(layout.trial_script.read_text()).returncode == 0

    host = Host(node, ActingSystemd(layout, act), layout, routes6=NetlinkBackend6())
    former, tried = (
        config({"destination": "fd00:1::/48", "metric": metric} | more, cidrs=())
        for metric, more in ((20, {"gateway": "fd00:a::1", "dev": "eth0"}), (10, {}))
    )
    phases.run(Configure(former, host=host))
    before = host.our_routes()
    phases.run(TryRoutes(tried, 60, host=host))
    assert len(host.our_routes()[0].hops) == 2
    report = phases.run(EndTrial(host=host))
    assert host.our_routes() == before
    assert {change.action for change in report.changes.routes} == {"added", "removed"}


def test_only_our_routes_are_restored_exactly(node: NamespaceKernel, sandbox: Sandbox, trial: Path) -> None:
    """The routes include an on-link route, a gateway behind it, several next hops, a metric, a source and an MTU."""
    run_ip("""
        route add 192.0.2.0/24 dev eth0 proto 217
        route add 172.16.1.0/24 via 192.0.2.1 dev eth0 proto 217 mtu 1400
        route add 172.16.2.0/24 proto 217 metric 7 nexthop via 10.1.0.1 dev eth0 weight 2 nexthop via 10.1.0.9 dev eth0
        route add 172.16.3.0/24 via 10.1.0.1 dev eth0 proto 217 src 10.1.0.4
        route add blackhole 172.16.4.7 proto 217
        route add 172.16.9.0/24 via 10.1.0.1 dev eth0 proto 217 onlink
    """)
    before = node.routes()
    text = render_trial([route for route in before if route.is_ours], FAMILIES, UNTIL)
    run_ip("""
        route del 192.0.2.0/24 proto 217
        route del 172.16.2.0/24 proto 217
        route del 172.16.4.7 proto 217
        route del 172.16.9.0/24 proto 217
        route replace 172.16.3.0/24 via 10.1.0.9 dev eth0 proto 217
        route add 172.16.5.0/24 via 10.1.0.1 dev eth0 proto 217
        route add 172.16.6.0/24 via 10.1.0.1 dev eth0 proto static
    """)
    done = sandbox.run(text)
    assert (done.returncode, done.stderr) == (0, "")
    (new,) = set(node.routes()) - set(before)
    assert (new.destination, new.protocol) == (IPv4Network("172.16.6.0/24"), Protocol.STATIC)
    assert set(before) <= set(node.routes())
    assert "172.16.1.0/24" not in done.stdout
    assert {line.split()[:2] == ["ip", "route"] for line in done.stdout.splitlines() if line.startswith("ip")} == {True}
    assert not trial.exists()


def test_a_route_that_took_our_place_stays(node: NamespaceKernel, sandbox: Sandbox, trial: Path) -> None:
    route = Route(IPv4Network("172.16.1.0/24"), (NextHop("eth0"),))
    run_ip("route add 172.16.1.0/24 dev eth0 proto static")
    done = sandbox.run(render_trial([route], FAMILIES, UNTIL))
    assert done.returncode == 1
    told, _, failed = done.stdout.splitlines()
    assert told.endswith("; not all are as before")
    assert failed == "failed: ip route add 172.16.1.0/24 dev eth0 proto 217 scope 253: File exists"
    assert attrs.evolve(route, protocol=Protocol.STATIC) in node.routes(Table.MAIN)
    assert not trial.exists()


@pytest.mark.parametrize("awk", AWKS)
def test_a_trial_lasts_until_ip_has_made_all_changes(
    node: NamespaceKernel, tmp_path: Path, trial: Path, awk: str
) -> None:
    """At words that it can't read, ip ends despite -force."""
    run_ip("route add 172.16.2.0/24 dev eth0 proto 217")
    routes = [Route(IPv4Network(f"172.16.{n}.0/24"), (NextHop("eth0"),), scope=Scope.LINK) for n in (1, 3)]
    text = render_trial(routes, FAMILIES, UNTIL)
    damaged = text.replace("172.16.3.0/24", "172.16.3.0/24 tos 0xfff")
    sandbox = Sandbox(tmp_path, awk_or_skip(awk))
    run_ip("route add 172.16.1.0/24 dev eth0 proto static")  # the only command that fails
    done = sandbox.run(damaged, "gate")
    assert (done.returncode, done.stdout, trial.exists()) == (1, "", True)
    assert "can't end the trial of routes: " in done.stderr
    assert "awk" not in done.stderr
    run_ip("route del 172.16.1.0/24 proto static")
    done = sandbox.run(text, "gate")
    assert (done.returncode, done.stderr, trial.exists()) == (0, "", False)
    assert {route.destination for route in node.our_routes()} == {route.destination for route in routes}


@pytest.mark.parametrize("awk", AWKS)
@pytest.mark.parametrize(
    ("when", "what", "failure"),
    [
        ("4", 'echo "Dump was interrupted and may be inconsistent." >&2', ""),
        ("[4-9]", 'echo "Dump was interrupted and may be inconsistent." >&2', "Dump was interrupted"),
        ("4", 'echo "RTNETLINK answers: Input/output error" >&2; exit 2', "Input/output error"),
        ("4", "exit 2", "ip was ended"),
    ],
    ids=["once", "always", "failed", "ended"],
)
def test_a_failed_look_for_hidden_hops_is_reported(
    kernel: NamespaceKernel, tmp_path: Path, trial: Path, awk: str, when: str, what: str, failure: str
) -> None:
    """The first two calls of ip list the routes, the third changes them."""
    assert kernel.links()
    build_node6()
    run_ip6("route add fd00:7::/64 dev eth0 proto 217 metric 512")
    text = render_trial([], tuple(Family), UNTIL)
    prepare = other_ip(f"case $calls in {when}) {what} ;; esac")
    done = Sandbox(tmp_path, awk_or_skip(awk)).run(text.replace("tries = 32", "tries = 3"), prepare=prepare)
    changed, *failed = [line for line in done.stdout.splitlines() if line.startswith(("ip", "failed: "))]
    assert changed.startswith("ip route del fd00:7::/64 ")
    assert (done.returncode, len(failed)) == ((1, 1) if failure else (0, 0))
    assert all(failure in line for line in failed)
    assert not NetlinkBackend6().our_routes()


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
    done = sandbox.run(render_trial([], FAMILIES, UNTIL))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ours(node) == there
    assert trial.exists() == (state == "another")


def test_a_trials_end_makes_the_check_write_a_marker(node: NamespaceKernel, sandbox: Sandbox, trial: Path) -> None:
    """The old marker may describe the trial's routes. At the gate, a check follows in any case."""
    folder = "/etc/aks-flex-node"
    check = f"{folder}/check-route-overlap.sh"
    prepare = f"mkdir -p {folder}; printf '#!/bin/sh\\necho judged $*\\n' >{check}; chmod 755 {check}"
    there = trial.read_text()
    for arguments, end in (((), "judged gate\n"), (("gate",), "they are as before\n")):
        trial.write_text(there)
        done = sandbox.run(render_trial([], FAMILIES, UNTIL), *arguments, etc=True, prepare=prepare)
        assert (done.returncode, trial.exists()) == (0, False)
        assert done.stdout.rstrip("\n").endswith(end.rstrip("\n"))


def test_it_waits_for_the_lock_except_at_the_gate(node: NamespaceKernel, sandbox: Sandbox, trial: Path) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    text = with_constants(render_trial([], FAMILIES, UNTIL), GATE_SECONDS=1, LOCK_SECONDS=1)
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


def test_a_start_ends_a_trial_if_its_confirm_was_killed(node: NamespaceKernel, sandbox: Sandbox, trial: Path) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    claimed = trial.rename(trial.with_name("trial.confirmed.json"))
    text = with_constants(render_trial([], FAMILIES, UNTIL), GATE_SECONDS=1)
    with (trial.parent / "run.lock").open("w") as lock:
        # The held lock indicates that a confirm is in progress.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = sandbox.run(text, "gate")
        assert (done.returncode, claimed.exists(), ours(node) != set()) == (1, True, True)
        assert "hostrouting confirm, which holds /run/aks-flex-node/run.lock" in done.stderr
    done = sandbox.run(text, "gate")
    assert (done.returncode, done.stderr, ours(node)) == (0, "", set())
    assert not claimed.exists()
    assert not trial.exists()


def test_a_killed_confirm_is_completed_or_undone(node: NamespaceKernel, sandbox: Sandbox, trial: Path) -> None:
    run_ip("route add 172.16.1.0/24 dev eth0 proto 217")
    claimed = trial.rename(trial.with_name("trial.confirmed.json"))
    python = sandbox.root / "python"
    python.write_text('#!/bin/sh\necho "$@"\nrm /run/aks-flex-node/trial.json\n')
    python.chmod(0o755)
    text = render_trial([], FAMILIES, UNTIL)
    (line,) = [line for line in text.splitlines() if line.startswith("readonly PYTHON=")]
    done = sandbox.run(text.replace(line, f"readonly PYTHON={python}"))
    assert (done.returncode, done.stdout) == (0, "-I -m hostrouting confirm\n")
    assert ours(node) != set()
    claimed.write_text(json.dumps({"until": UNTIL, "uptime": 1}))
    done = sandbox.run(text.replace(line, "readonly PYTHON=/nowhere"))
    assert ours(node) == set()
    assert not claimed.exists()
    assert not trial.exists()
