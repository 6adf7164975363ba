"""Test the boot scripts for static routes and the overlap check, with each awk that a node may
have.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from ipaddress import IPv4Network
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from nightly import IS_NIGHTLY, by_day
from node import SECOND_GATEWAY, build_links, build_node6, default_route, run_ip, run_ip6
from planning import manifest_of
from scripts import (
    Sandbox,
    other_ip,
    render_check_route_overlap_script,
    render_static_routes_script,
    verdict_of,
    with_constants,
)
from test_promises import DESTINATION, entries_of, table

from hostrouting import Config, Host, Layout, check
from hostrouting.boot.render import render_check
from hostrouting.boot.trial_timer import times_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Write, read_our_routes, read_routes
from hostrouting.kernel.rtnetlink.conversation import Listener, everywhere
from hostrouting.model.family import Family
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.routes import NextHop, Protocol, Route, Table
from hostrouting.overlap.summary import summary
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel

ADDED = "route add 172.16.1.0/24 via 10.1.0.1 dev eth0 proto 217"


@pytest.fixture
def plain(tmp_path: Path) -> Sandbox:
    """Return a sandbox with the system's awk, for tests that don't depend on it."""
    return Sandbox(tmp_path)


def routes_script(*routes: dict[str, Any] | str, wait: int = 0) -> str:
    wanted = [
        {"destination": route} if isinstance(route, str) else route
        for route in routes or (str(DESTINATION),)
    ]
    return render_static_routes_script(wanted, wait_seconds=wait)


def check_script(*cidrs: str, mode: str = "STRICT", wait: int = 0, **more: Any) -> str:
    return render_check_route_overlap_script(cidrs, mode, wait_seconds=wait, **more)


def many(count: int) -> str:
    return routes_script(*entries_of(count))


def installed(sandbox: Sandbox, text: str) -> list[str]:
    done = sandbox.run(text)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def refused(sandbox: Sandbox, text: str, *arguments: str, **more: Any) -> str:
    done = sandbox.run(text, *arguments, **more)
    assert done.returncode == 1, done
    return done.stderr


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


# --- static-routes.sh: resolved, added, replaced, left alone, refused -----------------------------


@pytest.mark.parametrize("seconds", [-2, 600])
def test_the_oneshot_ends_only_an_expired_trial(
    node: NamespaceKernel, plain: Sandbox, seconds: int
) -> None:
    """A trial's timer can be lost, for example in a soft reboot.

    During a trial, only the gate installs routes.
    """
    trial = plain.root / "run/aks-flex-node/trial.json"
    trial.parent.mkdir(parents=True)
    trial.write_text(to_json_text(times_of(seconds)))
    trial.with_name("trial.sh").write_text(f"echo ends by $1; rm /run/aks-flex-node/{trial.name}")
    is_over = seconds < 0
    said = (
        ["ends by gate", ADDED]
        if is_over
        else ["nothing is changed while a trial of routes is in progress"]
    )
    assert installed(plain, routes_script()) == said
    assert (
        DESTINATION in {route.destination for route in read_routes(node, Table.MAIN)}
    ) == is_over
    at_the_gate = ["nothing to change"] if is_over else [ADDED]
    assert plain.run(routes_script(), "gate").stdout.splitlines() == at_the_gate


def test_a_trial_never_decides_about_a_start(node: NamespaceKernel, plain: Sandbox) -> None:
    """Routes added by a trial may be rolled back at any time."""
    text, folder = check_script("10.96.0.0/12"), plain.root / "run/aks-flex-node"
    folder.mkdir(parents=True)
    for name in ("trial.json", "trial.confirmed.json"):
        (folder / name).touch()
        assert "a trial of routes is in progress" in refused(plain, text, "gate")
        assert plain.run(text).returncode == 0
        (folder / name).unlink()
    assert plain.run(text, "gate").returncode == 0


def test_a_run_never_undoes_what_it_reports(node: NamespaceKernel, plain: Sandbox) -> None:
    """At its end, the script removes the list of the Go package's routes, which usually isn't
    there.
    """
    done = plain.run(
        routes_script(), prepare='mount --bind /bin/false "$(readlink -f "$(command -v rm)")"'
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, [ADDED])
    assert DESTINATION in {route.destination for route in read_routes(node, Table.MAIN)}


def test_a_gateway_behind_a_removed_route_is_missing(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    assert node.write(Write.ADD, [Route(IPv4Network("10.7.0.0/24"), (NextHop("eth1"),))]) == ()
    before = table(node)
    error = refused(
        sandbox,
        routes_script({"destination": str(DESTINATION), "gateway": "10.7.0.1", "dev": "eth1"}),
    )
    assert (
        "waiting for gateway 10.7.0.1 (no route of scope link reaches it on eth1), "
        "needed by 172.16.1.0/24"
    ) in error
    assert table(node) == before


def test_protocol_217_may_have_any_name(node: NamespaceKernel, plain: Sandbox) -> None:
    name = (
        "mkdir -p /etc/iproute2/rt_protos.d; "
        "echo '217 hostrouting' > /etc/iproute2/rt_protos.d/hostrouting.conf"
    )
    assert plain.run(routes_script(), etc=True, prepare=name).returncode == 0
    done = Sandbox(plain.root / "run").run(routes_script("172.16.2.0/24"), etc=True, prepare=name)
    assert done.stdout.splitlines()[1].startswith("route del 172.16.1.0/24 ")


# --- all or nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["all processes, as systemd does", "the script alone"])
def test_sigterm_in_the_middle_rolls_everything_back(
    node: NamespaceKernel, sandbox: Sandbox, whom: str
) -> None:
    installed(sandbox, routes_script("172.16.2.0/24"))
    before = table(node)
    again = 'think() {\n  [ "$1" != undo ] || kill -TERM "$BASHPID"\n'
    text = many(by_day(1000, by_night=4000)).replace("think() {\n", again)
    half = '{ head -n 500; until [ -e "$ROOT/go" ]; do sleep 0.05; done; cat; }'
    change = f'[ "$calls" != 2 ] || {{ {half} | "$ROOT/ip-itself" "$@"; exit; }}'
    with Listener(everywhere(Family.IPV4)) as changes:
        process = sandbox.start(text, prepare=other_ip(change))
        assert select.select([changes], [], [], 30)[0]
        (os.killpg if whom.startswith("all") else os.kill)(process.pid, signal.SIGTERM)
        (sandbox.root / "go").touch()
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (1, "stopped: SIGTERM; nothing is left half-done\n")
    assert table(node) == before


MANY = [str(DESTINATION), *(f"10.200.{n}.0/24" for n in range(60))]


@pytest.mark.parametrize(
    "meanwhile",
    ["route add 172.16.1.0/25 dev ib0 proto static", "rule add pref 9 to 172.16.1.0/24 blackhole"],
    ids=["a longer prefix", "a rule"],
)
def test_routes_that_another_program_adds_meanwhile_are_noticed(
    node: NamespaceKernel, sandbox: Sandbox, meanwhile: str
) -> None:
    change = f'[ "$calls" != 2 ] || "$ROOT/ip-itself" {meanwhile}'
    done = sandbox.run(routes_script(*MANY), prepare=other_ip(change))
    assert done.returncode == 1
    assert "172.16.1.0/24 doesn't win" in done.stderr


@pytest.mark.parametrize("loss", ["route del 172.16.2.0/24", "link set eth1 down", "link del eth1"])
@pytest.mark.parametrize("is_loser", [False, True])
def test_a_route_that_is_already_gone_needs_no_removal(
    node: NamespaceKernel, sandbox: Sandbox, loss: str, is_loser: bool
) -> None:
    """It vanishes after the routes were listed.

    If the run then fails, that route is restored, or named.
    """
    gone = {"destination": "172.16.2.0/24", "gateway": str(SECOND_GATEWAY), "dev": "eth1"}
    installed(sandbox, routes_script(gone, "172.16.3.0/24"))
    rule = '"$ROOT/ip-itself" rule add pref 9 to 172.16.1.0/24 blackhole;' * is_loser
    change = f'[ "$calls" != 2 ] || {{ {rule} "$ROOT/ip-itself" {loss}; }}'
    done = sandbox.run(routes_script(), prepare=other_ip(change))
    assert done.returncode == is_loser
    made = [] if is_loser else [["add", "172.16.1.0/24"], ["del", "172.16.3.0/24"]]
    assert [line.split()[1:3] for line in done.stdout.splitlines()] == made
    assert ("put back: ip route add 172.16.2.0/24" in done.stderr) == (
        is_loser and loss.startswith("link")
    )
    back = ["172.16.2.0/24"] if loss.startswith("route") else []
    left = [*back, "172.16.3.0/24"] if is_loser else ["172.16.1.0/24"]
    assert [str(each.destination) for each in read_our_routes(node)] == left


# The run removes or replaces ours, and before the call of ip with this number, another program
# acts.
UNDONE = {
    "takes the place of a removed one": (
        "172.16.2.0/24",
        str(DESTINATION),
        4,
        "route add 172.16.2.0/24 dev ib0",
        "has taken the place of 172.16.2.0/24 ",
    ),
    "comes before a replaced one": (
        str(DESTINATION),
        {"destination": str(DESTINATION), "gateway": "10.1.0.9"},
        3,
        f"route prepend {DESTINATION} dev ib0",
        "",
    ),
}


@pytest.mark.parametrize(("there", "wanted", "call", "does", "why"), UNDONE.values(), ids=UNDONE)
def test_another_programs_route_stays_in_an_undo(
    node: NamespaceKernel,
    sandbox: Sandbox,
    there: str,
    wanted: str | dict[str, str],
    call: int,
    does: str,
    why: str,
) -> None:
    installed(sandbox, routes_script(there))
    ours = read_our_routes(node)
    rule = f'"$ROOT/ip-itself" rule add pref 9 to {DESTINATION} blackhole'
    change = f'case $calls in 2) {rule} ;; {call}) "$ROOT/ip-itself" {does} proto static ;; esac'
    assert why in refused(sandbox, routes_script(wanted), prepare=other_ip(change))
    found = [
        route for route in read_routes(node, Table.MAIN) if route.destination == IPv4Network(there)
    ]
    assert found[0].protocol == Protocol.STATIC
    assert read_our_routes(node) == (() if why else ours)


# --- the lock -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["routes", "check"])
def test_a_replaced_waiting_script_leaves_it_to_the_new_one(
    kernel: NamespaceKernel, plain: Sandbox, kind: str
) -> None:
    script = routes_script if kind == "routes" else check_script
    build_links(kernel)
    process = plain.start(script("172.16.1.0/24", wait=60))
    read_line(process)
    # A script that waits doesn't hold the lock.
    with (plain.root / "run/aks-flex-node/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        plain.write(script("172.16.2.0/24", wait=60), "new.sh").rename(plain.root / "script.sh")
    assert kernel.write(Write.ADD, [default_route()]) == ()
    out, error = process.communicate(timeout=30)
    assert (
        f"another {plain.root}/script.sh has been installed; it takes over"
        in (out + error).splitlines()
    )
    if kind == "routes":
        assert (process.returncode, error) == (0, "")
        assert [str(route.destination) for route in read_routes(kernel) if route.is_ours] == [
            "172.16.2.0/24"
        ]
    else:
        assert process.returncode == 1
        assert plain.told()[0].startswith("OVERLAP: expected CIDR 172.16.2.0/24 ")


def test_it_waits_for_devices_and_gateways(node: NamespaceKernel, plain: Sandbox) -> None:
    wanted = {"destination": str(DESTINATION), "dev": "eth2", "gateway": "10.3.0.1"}
    process = plain.start(routes_script(wanted, wait=60))
    assert read_line(process).endswith(
        "for device eth2 (there is no such interface), needed by 172.16.1.0/24"
    )
    node.add_link("eth2", up=False)
    assert read_line(process).endswith("for device eth2 (it is down), needed by 172.16.1.0/24")
    node.set_link("eth2", up=True)
    missing = (
        "gateway 10.3.0.1 (no route of scope link reaches it on eth2), needed by 172.16.1.0/24"
    )
    assert read_line(process) == f"waiting up to 60 s for {missing}"
    node.add_address("eth2", "10.3.0.4/24")
    out, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")
    assert out.startswith("route add 172.16.1.0/24 ")


@pytest.mark.parametrize(
    "signal_", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP] if IS_NIGHTLY else [signal.SIGTERM]
)
def test_a_signal_during_the_wait_changes_nothing(
    kernel: NamespaceKernel, sandbox: Sandbox, signal_: signal.Signals
) -> None:
    build_links(kernel)
    before = table(kernel)
    process = sandbox.start(routes_script(wait=600))
    read_line(process)
    os.kill(process.pid, signal_)
    # EOF means that no process has the pipe open any more.
    _, error = process.communicate(timeout=10)
    assert process.returncode == 1
    assert error.splitlines()[-1] == f"stopped: {signal_.name}; nothing is left half-done"
    assert table(kernel) == before


# --- the gate -------------------------------------------------------------------------------------


def test_at_the_gate_a_held_lock_fails_only_the_routes(
    node: NamespaceKernel, plain: Sandbox
) -> None:
    before, path = table(node), plain.root / "run/aks-flex-node/lock"
    path.parent.mkdir(parents=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = refused(
            plain, with_constants(routes_script(), GATE_SECONDS=1), "gate", is_host=True
        )
        done = plain.run(
            with_constants(check_script("10.96.0.0/12"), GATE_SECONDS=1), "gate", is_host=True
        )
    held = "another run has held the lock /run/aks-flex-node/lock for 1 s; "
    assert error == f"{held}to see which process: fuser -v /run/aks-flex-node/lock\n"
    assert table(node) == before
    assert (done.returncode, plain.told()) == (0, [])
    assert done.stderr.startswith(held)
    assert done.stderr.endswith("; judging without it\n")


def test_a_flock_that_does_not_run_is_no_held_lock(node: NamespaceKernel, plain: Sandbox) -> None:
    """This is so if too few files may be open."""
    broken = (
        "printf '#!/bin/sh\\nexit 127\\n'"
        ' > "$ROOT/tool"; chmod 755 "$ROOT/tool"; '
        'mount --bind "$ROOT/tool" "$(readlink -f $(command -v flock))"'
    )
    error = refused(plain, routes_script(), prepare=broken)
    assert error.startswith("can't take the lock /run/aks-flex-node/lock: flock doesn't run, or ")


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
def test_a_check_that_could_not_run_leaves_a_marker(plain: Sandbox, mode: str) -> None:
    done = plain.run(
        check_script("10.96.0.0/12", mode=mode), "unjudged", "check-failed: it took more than 18 s"
    )
    assert done.returncode == (mode == "STRICT")
    assert plain.told() == ["check-failed: it took more than 18 s"]


def test_an_argument_that_is_not_known_is_an_error(node: NamespaceKernel, plain: Sandbox) -> None:
    for arguments in (["gate", "told", "told"], ["gate", "again"], ["now"]):
        done = plain.run(check_script("10.0.0.0/8", mode="WARN"), *arguments)
        assert (done.returncode, done.stderr) == (64, "usage: script.sh [gate [told]]\n")


# --- check-route-overlap.sh -----------------------------------------------------------------------


HALVES = ("172.16.0.0/17", "172.16.128.0/17")


# The first call of ip lists the tables, and the second looks up.
def test_a_route_added_during_the_lookups_is_seen(node: NamespaceKernel, sandbox: Sandbox) -> None:
    installed(sandbox, routes_script(*HALVES))
    change = '[ "$calls" != 2 ] || "$ROOT/ip-itself" route add 172.16.7.0/29 via 10.2.0.1 dev eth1'
    done = sandbox.run(check_script("172.16.0.0/16"), prepare=other_ip(change))
    assert done.returncode == 1
    assert "(probe 172.16.7.0) routes via eth1" in done.stderr
    assert len((sandbox.root / "calls").read_text()) == 4


def test_changes_are_rolled_back_if_awk_is_killed(node: NamespaceKernel, sandbox: Sandbox) -> None:
    """It is killed as soon as it has emptied its file for the next commands."""
    before = table(node)
    late = 'sleep 0.3; "$ROOT/ip-itself" "$@"; : > "$SCRATCH"; : > "$ROOT/ended"'
    change = f'[ "$calls" != 2 ] || {{ kill -9 $PPID; {late}; exit; }}'
    error = refused(sandbox, routes_script(), prepare=other_ip(change))
    assert error.endswith("can't plan the static routes: awk ended without an answer\n")
    assert (sandbox.root / "ended").exists()
    # List and change; list, undo, and list again.
    assert len((sandbox.root / "calls").read_text()) == 5
    assert table(node) == before


@pytest.mark.parametrize(
    "why", ["Dump was interrupted and may be inconsistent.", "Error: no answer"]
)
def test_changes_are_rolled_back_if_the_table_can_not_be_listed(
    node: NamespaceKernel, sandbox: Sandbox, why: str
) -> None:
    """The run has replaced one route, added one and removed one."""
    gone = {"destination": "172.16.3.0/24"}
    installed(sandbox, routes_script(str(DESTINATION), gone))
    before = table(node)
    wanted = {"destination": str(DESTINATION), "gateway": "10.1.0.9"}
    # A batch comes from a file, a question for a list through a pipe.
    commit = (
        '[ -e "$ROOT/made" ] || { "$ROOT/ip-itself" "$@" >/dev/null; : >"$ROOT/made"; exit 2; }'
    )
    change = (
        f"if [ -f /proc/self/fd/0 ]; then {commit}; "
        f'elif [ -e "$ROOT/made" ]; then echo "{why}" >&2; exit 2; fi'
    )
    assert refused(sandbox, routes_script(wanted, "172.16.2.0/24"), prepare=other_ip(change))
    assert (sandbox.root / "made").exists()
    assert table(node) == before


def test_a_stopped_run_says_what_either_family_left(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    """IPv6 is committed last and rolled back first, and its ip fails in both cases."""
    build_node6("eth6", "ib6")
    before = table(node)
    wanted = {"destination": "fd00:9::/64", "gateway": "fd00:a::1", "dev": "eth6"}
    kill = 'read -r _ _ _ script _ < "/proc/$PPID/stat"; kill -TERM "$script"'
    change = f'[ "$calls" != 5 ] || {{ {kill}; }}; [ "$calls" -lt 5 ] || [ "$1" = -4 ] || exit 1'
    done = sandbox.run(routes_script(str(DESTINATION), wanted), prepare=other_ip(change))
    left = "not all could be put back: ip was ended"
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [f"can't change the static routes: ip was ended; {left}", f"stopped: SIGTERM; {left}"],
    )
    assert table(node) == before


def test_a_signal_while_both_families_are_planned_changes_nothing(
    node: NamespaceKernel, plain: Sandbox
) -> None:
    build_node6("eth6", "ib6")
    wanted = {"destination": "fd00:9::/64", "gateway": "fd00:a::1", "dev": "eth6"}
    planned = 'answer=`think "$TASK"`'
    text = routes_script(str(DESTINATION), wanted).replace(planned, f"{planned}; kill -TERM $$")
    error = refused(plain, text, prepare=other_ip())
    assert error == "stopped: SIGTERM; nothing is left half-done\n"
    assert len((plain.root / "calls").read_text()) == 3  # all of them lists


def test_an_undo_that_is_undone_each_time_says_so(node: NamespaceKernel, sandbox: Sandbox) -> None:
    """Another process installs our route again before each listing."""
    rule = f"rule add pref 9 to {DESTINATION} blackhole"
    again = ADDED.replace(" add ", " replace ")
    change = (
        f'case $calls in 1) ;; 2) "$ROOT/ip-itself" {rule} ;; '
        f'*[13579]) "$ROOT/ip-itself" {again} ;; esac'
    )
    error = refused(sandbox, routes_script(), prepare=other_ip(change))
    assert "not all could be put back: the routes changed each time" in error


def test_a_signal_after_the_changes_is_too_late(node: NamespaceKernel, plain: Sandbox) -> None:
    last = "\n    attempt\n    status=$?"
    assert installed(plain, routes_script().replace(last, f"{last}; kill -TERM $$")) == [ADDED]


def test_names_do_not_control_a_terminal(node: NamespaceKernel, sandbox: Sandbox) -> None:
    """U+009B begins a sequence like ESC [ does, and U+2028 separates lines."""
    name = "i\x1b[7m\x9b\u2028"
    node.add_link(name)
    assert (
        node.write(Write.ADD, [Route(DESTINATION, (NextHop(name),), protocol=Protocol.STATIC)])
        == ()
    )
    for text in (
        routes_script({"destination": str(DESTINATION), "metric": 9}),
        check_script(str(DESTINATION)),
    ):
        error = refused(sandbox, text)
        assert "dev i?[7m?????" in error
        assert error.replace("\n", "").isascii()
        assert error.replace("\n", "").isprintable()
    assert " via i?[7m?????," in sandbox.told()[0]


def test_a_failed_listing_gets_no_verdict(node: NamespaceKernel, sandbox: Sandbox) -> None:
    """By then, awk has already received the complete listing."""
    change = (
        '[ "$calls" != 1 ] || { "$ROOT/ip-itself" "$@"; '
        'echo "RTNETLINK answers: Input/output error" >&2; exit 2; }'
    )
    assert sandbox.run(check_script("10.96.0.0/12"), prepare=other_ip(change)).returncode == 1
    assert sandbox.told() == [
        "check-failed: can't list the routes: RTNETLINK answers: Input/output error"
    ]


def test_tables_that_change_all_the_time_are_unknown(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    text = with_constants(check_script("172.16.0.0/16"), ATTEMPTS=3)
    change = '"$ROOT/ip-itself" route add "172.16.$calls.0/24" via 10.1.0.1 dev eth0'
    error = refused(sandbox, text, prepare=other_ip(change))
    assert "the routes changed each time that they were read; try again later" in error
    assert len((sandbox.root / "calls").read_text()) == 6


@pytest.mark.parametrize(
    ("route", "looks"),
    [("-6 route {} fd00:9::/64 dev eth1", 2), ("route {} 10.9.0.0/24 dev eth1", 1)],
    ids=("6", "4"),
)
def test_any_removed_ipv6_route_causes_another_check(
    node: NamespaceKernel, sandbox: Sandbox, route: str, looks: int
) -> None:
    """When a listing of IPv6 routes continues, it skips as many as it has returned, and so may miss
    another one.
    """
    run_ip6("addr flush scope link", "route add default dev eth0")
    changes = "; ".join(f'"$ROOT/ip-itself" {route.format(verb)}' for verb in ("add", "del"))
    change = f'[ "$calls" != 2 ] || {{ {changes}; }}'
    done = sandbox.run(check_script("fd00:172::/32"), prepare=other_ip(change))
    assert (done.returncode, done.stderr) == (0, "")
    assert len((sandbox.root / "calls").read_text()) == 3 * looks


def test_the_gate_waits_for_the_default_route(kernel: NamespaceKernel, sandbox: Sandbox) -> None:
    build_links(kernel)
    process = sandbox.start(check_script("10.96.0.0/12", wait=30), "gate", is_host=True)
    assert read_line(process) == "waiting up to 5 s for the default route"
    assert kernel.write(Write.ADD, [default_route()]) == ()
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out, error) == (0, "every expected CIDR leaves through eth0\n", "")


@pytest.mark.parametrize(
    ("cidrs", "through"),
    [
        (["10.96.0.0/12"], "eth0"),
        (
            ["10.96.0.0/12", {"cidr": "10.2.0.0/24", "devs": ["eth1"]}],
            "eth0, or the devs that it names",
        ),
        ([{"cidr": "10.2.0.0/24", "devs": ["eth1"]}], "the devs that it names"),
    ],
)
def test_script_and_library_say_through_what_the_cidrs_leave(
    node: NamespaceKernel, plain: Sandbox, cidrs: list[Any], through: str
) -> None:
    config = Config.from_mapping({"hostRouting": {"routeOverlap": {"expectedCidrs": cidrs}}})
    said = f"every expected CIDR leaves through {through}"
    assert (
        summary(
            check(config, host=Host(routes=node, units=FakeSystemd(), layout=Layout(plain.root)))
        )
        == said
    )
    assert plain.run(render_check(config)).stdout == f"{said}\n"


@pytest.mark.parametrize("uplinks", [None, ["eth0"]])
def test_a_default_route_beside_main_is_not_waited_for(
    kernel: NamespaceKernel, plain: Sandbox, uplinks: list[str] | None
) -> None:
    build_links(kernel)
    assert kernel.write(Write.ADD, [default_route(table=Table.DEFAULT)]) == ()
    section: dict[str, Any] = {"routeOverlap": {"expectedCidrs": ["10.96.0.0/12"]}}
    named = {} if uplinks is None else {"uplinks": uplinks}
    done = plain.run(render_check(Config.from_mapping({"hostRouting": section | named})))
    assert "waiting" not in done.stdout
    assert ("table 253" in done.stderr) == (uplinks is None)
    assert ("every expected CIDR leaves through eth0" in done.stdout) == (uplinks is not None)


SIZES = [f"size={room}" for room in range(8192, 61440, by_day(24576, by_night=4096))]


@pytest.mark.parametrize("options", [*SIZES, "nr_inodes=2", "nr_inodes=5", "ro"])
def test_a_nearly_full_run_folder_means_all_or_nothing(
    node: NamespaceKernel, sandbox: Sandbox, options: str
) -> None:
    """A batch that is truncated mid-line may describe a different route."""
    before = table(node)
    wanted = [f"172.17.{number // 200}.{number % 200}/32" for number in range(400)]
    full = f"mkdir -p /run/aks-flex-node; mount -t tmpfs -o {options} tmpfs /run/aks-flex-node"
    done = sandbox.run(routes_script(*wanted), is_host=True, prepare=full)
    if done.returncode == 0:
        assert len(table(node)) == len(before) + 400
    else:
        assert table(node) == before
        assert done.stderr
    if "size" not in options:
        checked = sandbox.run(check_script("10.96.0.0/12"), is_host=True, prepare=full)
        assert (
            checked.returncode,
            "can't write the markers in /run/aks-flex-node: " in checked.stderr,
        ) == (1, True)
        # Of bash, sh and awk.
        assert not re.search(r"line \d|cannot|fatal", done.stderr + checked.stderr)


def test_a_check_without_answers_says_so(node: NamespaceKernel, sandbox: Sandbox) -> None:
    cut = '[ ! -f /proc/self/fd/0 ] || { "$ROOT/ip-itself" "$@" | head -n -1; exit; }'
    assert "ip didn't give all answers: is there room left in /run?" in refused(
        sandbox, check_script("10.96.0.0/12"), prepare=other_ip(cut)
    )


# bash may also lack descriptors or space for them.
@pytest.mark.parametrize("lines", ['<<<"$LINES"', "</missing"])
def test_no_marker_says_ok_in_a_full_run_folder(
    node: NamespaceKernel, plain: Sandbox, lines: str
) -> None:
    folder = (
        "mount -t tmpfs -o size=4096 tmpfs /run; mkdir /run/aks-flex-node; cd /run/aks-flex-node"
    )
    prepare = f"{folder}; : >route-overlap.ok; head -c 9999 /dev/zero >full 2>&1 || :"
    text = check_script("10.96.0.0/12").replace('<<<"$LINES"', lines)
    done = plain.run(
        text, prepare=prepare, before=("bash", "-c", '"$@"; ls route-overlap.*', "bash")
    )
    assert (
        done.stdout,
        "can't write the markers in /run/aks-flex-node: no space is left" in done.stderr,
    ) == ("", True)


@pytest.mark.parametrize(
    "text",
    [routes_script(wait=600), check_script("10.96.0.0/12", wait=600)],
    ids=["routes", "check"],
)
def test_an_open_gate_does_not_wait_for_the_oneshots(
    node: NamespaceKernel, plain: Sandbox, text: str
) -> None:
    """The consumer starts only after the oneshot."""
    node.write(Write.DELETE, [default_route()])
    done = plain.run(
        text,
        is_host=True,
        etc=True,
        prepare="mkdir -p /etc/hostrouting; : >/etc/hostrouting/gate.off",
    )
    assert done.returncode == 1


def test_the_gate_reports_a_failure_once(node: NamespaceKernel, plain: Sandbox) -> None:
    """A failure isn't reported again while its marker exists, with or without a report, but a
    different failure is.
    """
    text = check_script("172.16.2.0/24")
    told = refused(plain, text, "gate")
    assert told
    assert refused(plain, text, "gate", "told") == ""
    report = plain.root / "run/aks-flex-node/route-overlap.json"
    report.write_text("{}")
    assert refused(plain, text, "gate", "told") == ""
    assert report.read_text() == "{}"
    (report.parent / "route-overlap.detected").unlink()
    assert refused(plain, text, "gate", "told") == told
    assert "172.16.3.0/24" in refused(plain, check_script("172.16.3.0/24"), "gate", "told")
    assert not report.exists()


TOOLS = ("ip", "mv", "sort", "awk")
FAILURES = ("exit 0", "exit 3", "echo rubbish", "cat >/dev/null; echo ok; echo fine; kill -9 $$")
TRIED = [*product(TOOLS, FAILURES)] if IS_NIGHTLY else [*zip(TOOLS, FAILURES, strict=True)]


def test_a_stopped_check_leaves_its_marker_whole(node: NamespaceKernel, plain: Sandbox) -> None:
    plain.write('#!/bin/sh\nkill -HUP 0\nexec "$ROOT/mv-itself" "$@"\n', "mv")
    other = 'cp /usr/bin/mv "$ROOT/mv-itself"; mount --bind "$ROOT/mv" /usr/bin/mv'
    assert plain.run(check_script("172.16.2.0/24"), prepare=other).returncode == -signal.SIGHUP
    assert plain.told()[0].startswith("OVERLAP: expected CIDR 172.16.2.0/24 ")


@pytest.mark.parametrize(
    ("cidr", "marker"), [("10.96.0.0/12", "ok"), ("172.16.2.0/24", "detected")]
)
def test_a_link_in_a_markers_place_is_replaced(
    node: NamespaceKernel, plain: Sandbox, cidr: str, marker: str
) -> None:
    folder = plain.root / "run/aks-flex-node"
    victim = plain.write("theirs", "victim")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"route-overlap.{marker}"
    path.symlink_to(victim)
    plain.run(check_script(cidr))
    assert not path.is_symlink()
    assert victim.read_text() == "theirs"


@pytest.mark.parametrize("tool", ["mv", "rm"])
def test_two_checks_at_once_leave_one_marker(
    tool: str, node: NamespaceKernel, plain: Sandbox
) -> None:
    """Between the removal of a marker and the writing of the other one, another check runs."""
    fails, passes = check_script("172.16.2.0/24"), check_script("10.96.0.0/12")
    first, second = (fails, passes) if tool == "mv" else (passes, fails)
    plain.run(second)
    other = '[[ $* = *route-overlap.* ]] && rmdir "$ROOT/once" 2>/dev/null && "$ROOT/other.sh"'
    itself = '"$ROOT/tool-itself" "$@"'
    steps = (other, itself) if tool == "mv" else (itself, other)
    plain.write("\n".join(["#!/bin/bash", *steps, "exit 0\n"]), "tool")
    plain.write(second, "other.sh")
    (plain.root / "once").mkdir()
    prepare = f'cp /usr/bin/{tool} "$ROOT/tool-itself"; mount --bind "$ROOT/tool" /usr/bin/{tool}'
    plain.run(first, prepare=prepare)
    assert not (plain.root / "once").exists()
    assert bool(plain.told()) == (first == fails)


@pytest.mark.parametrize(("tool", "how"), TRIED)
def test_strict_never_passes_with_a_failing_tool(
    node: NamespaceKernel, plain: Sandbox, tool: str, how: str
) -> None:
    broken = (
        f"printf '#!/bin/sh\\n{how}\\n'"
        ' > "$ROOT/tool"; chmod 755 "$ROOT/tool"; '
        f'mount --bind "$ROOT/tool" "$(readlink -f $(command -v {tool}))"'
    )
    done = plain.run(check_script("10.96.0.0/12"), prepare=broken)
    # An empty marker is written without mv.
    assert (done.returncode, bool(done.stderr)) == ((0, False) if tool == "mv" else (1, True)), done
    assert plain.run(check_script("10.96.0.0/12", mode="WARN"), prepare=broken).returncode == 0
    if tool not in ("sort", "mv"):
        before = table(node)
        assert refused(plain, routes_script(), prepare=broken)
        assert table(node) == before


# --- Python's explanation of a failing verdict ----------------------------------------------------

SHADOWED = Config(
    route_overlap={"expectedCidrs": ["172.0.0.0/8"], "mode": "STRICT"}, wait_seconds=0
)
INSTALLED = 'mkdir -p /etc/hostrouting; cp "$ROOT/manifest" /etc/hostrouting/installed.json'


def run_with(
    sandbox: Sandbox, python: str, *arguments: str, config: Config = SHADOWED, **more: Any
) -> Any:
    manifest = manifest_of(config, Layout())
    sandbox.write(manifest.to_text(), "manifest")
    seconds = 1 if "waiting" in python else 30
    text = with_constants(
        render_check(config, python=python),
        JUDGE_SECONDS=seconds,
        EXPLAIN_SECONDS=seconds,
        GATE_EXPLAIN_SECONDS=seconds,
    )
    # The consumer's environment may set PYTHONPATH, and the gate inherits it.
    prepare = f'{INSTALLED}; cd "$ROOT"; export PYTHONPATH="$ROOT"'
    return sandbox.run(text, *arguments, is_host=True, etc=True, prepare=prepare, **more)


def write_modules(sandbox: Sandbox, text: str) -> None:
    """Write modules that Python would import if the caller's environment decided that."""
    for name in ("hostrouting", "phases", "json"):
        sandbox.write(text, f"{name}.py")


def test_python_explains_a_failing_verdict_and_leaves_a_report(
    node: NamespaceKernel, plain: Sandbox
) -> None:
    write_modules(plain, "raise SystemExit('of the caller')")
    done = run_with(plain, sys.executable, "gate")
    assert done.returncode == 1
    assert "; shadowed: 172.16.0.0/16; by " in done.stderr
    assert (
        'fix: add to hostRouting.staticRoutes.routes: {"destination": "172.16.0.0/17"}'
        in done.stderr
    )
    report = json.loads((plain.root / "run/aks-flex-node/route-overlap.json").read_text())
    # Before Linux 5.14, 172.16.0.0 is a broadcast address.
    assert (report["verdict"], report["findings"][0]["probe"][:-1]) == ("overlap", "172.16.0.")
    fine = Config(route_overlap={"expectedCidrs": ["10.96.0.0/12"]}, wait_seconds=0)
    assert run_with(plain, sys.executable, config=fine).returncode == 0
    assert plain.told() == []


def test_a_failed_explanation_keeps_the_verdict(node: NamespaceKernel, plain: Sandbox) -> None:
    before = run_with(plain, "")
    told = plain.told()
    for body in (
        ("exit 0", "exit 3", "kill -9 $$", "exec sleep 600")
        if IS_NIGHTLY
        else ("exit 3", "exec sleep 600")
    ):
        python = plain.write(
            f"#!/bin/sh\n{body}\n", "waiting-python" if "sleep" in body else "python"
        )
        done = run_with(plain, str(python))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(before.stderr)
        assert plain.told() == told


# --- Python's verdict where the script has none ---------------------------------------------------

EXOTIC = "rule add pref 100 ipproto icmp lookup 101"
FINE = Config(route_overlap={"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"}, wait_seconds=0)
(FINE_SUM,) = re.findall(r"^readonly CONFIG_SUM=(\w+)$", render_check(FINE), re.MULTILINE)


@pytest.mark.parametrize("arguments", [(), ("gate",), ("gate", "told")])
def test_python_judges_what_the_script_can_not(
    node: NamespaceKernel, plain: Sandbox, arguments: tuple[str, ...]
) -> None:
    run_ip(EXOTIC)
    write_modules(plain, f"print('ok on x for config {FINE_SUM}'); raise SystemExit(0)")
    done = run_with(plain, "", *arguments, config=FINE)
    (line,) = plain.told()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("check-failed: the policy rule 100: from all ipproto ")
    done = run_with(plain, sys.executable, *arguments, config=FINE)
    assert (done.returncode, done.stderr, plain.told()) == (0, "", [])
    assert f"says {sys.executable}; without it: {line}" in done.stdout
    done = run_with(plain, sys.executable, *arguments)
    assert (done.returncode, plain.told()[0].partition(":")[0]) == (1, "OVERLAP")
    report = json.loads((plain.root / "run/aks-flex-node/route-overlap.json").read_text())
    assert report["verdict"] == "overlap"
    run_with(plain, "", *arguments, config=FINE)
    assert not (plain.root / "run/aks-flex-node/route-overlap.json").exists()


BELIEVED = f"echo ok on x for config {FINE_SUM}"
NOT_OK = f"echo overlap on x for config {FINE_SUM}"
DISBELIEVED = {
    "exits with 0": "exit 0",
    "says ok": "echo ok",
    "says ok as the command does": "echo 'ok on x: each of 1 expected CIDR leaves through eth0'",
    "has judged another config": f"echo ok on x for config {'0' * 64}",
    "prints its input": "cat; echo ok",
    "says more": f"{BELIEVED}; echo OVERLAP",
    "says less": f"echo ok for config {FINE_SUM}",
    "fails after it": f"{BELIEVED}; exit 1",
    "is killed after it": f"{BELIEVED}; kill -9 $$",
    "says it on stderr": f"{BELIEVED} >&2",
    "hangs": "exec sleep 600",
    "hangs after it": f"{BELIEVED}; exec sleep 600",
    "leaves a child that hangs": f"{BELIEVED}; sleep 600 &",
    "prints without an end and hangs": f"{BELIEVED}; exec yes",
    "says too much": f"{NOT_OK}; head -c 9999999 /dev/zero | tr '\\0' x; exit 1",
    "gives no reason": f"{NOT_OK}; exit 1",
    "gives an empty reason": f"{NOT_OK}; printf '\\nOVERLAP\\n'; exit 1",
    "is unknown without a reason": f"echo unknown on x for config {FINE_SUM}; exit 2",
    "fails": "exit 3",
}


def test_another_program_opens_no_gate(node: NamespaceKernel, plain: Sandbox) -> None:
    run_ip(EXOTIC)
    run_with(plain, "", "gate", config=FINE)
    told = plain.told()
    for what, does in DISBELIEVED.items():
        name = "waiting-python" if "hangs" in what else "python"
        python = plain.write(f"#!/bin/sh\n{does}\n", name)
        done = run_with(plain, str(python), "gate", config=FINE)
        assert (done.returncode, plain.told()) == (1, told), (what, done)
        assert f"{python} gives no verdict (exit code " in done.stderr, what


def test_a_hostname_may_break_lines(node: NamespaceKernel, plain: Sandbox) -> None:
    run_ip(EXOTIC)
    named = (
        "import os, socket, sys; socket.sethostname('a\\nb'); os.execv(sys.argv[1], sys.argv[1:])"
    )
    before = ("unshare", "--uts", sys.executable, "-c", named)
    done = run_with(plain, sys.executable, config=FINE, before=before)
    assert (done.returncode, done.stderr, plain.told()) == (0, "", [])


def test_a_missing_python_opens_no_gate(node: NamespaceKernel, plain: Sandbox) -> None:
    run_ip(EXOTIC)
    done = run_with(plain, "/nowhere/python", "gate", config=FINE)
    assert (done.returncode, verdict_of(plain.told())) == (1, "unknown")


@pytest.mark.parametrize("is_tried", [False, True])
def test_a_trial_that_begins_meanwhile_counts(
    node: NamespaceKernel, plain: Sandbox, *, is_tried: bool
) -> None:
    run_ip(EXOTIC)
    begin = "echo >/run/aks-flex-node/trial.json; " if is_tried else ""
    python = plain.write(f"#!/bin/sh\n{begin}{BELIEVED}\n", "python")
    done = run_with(plain, str(python), "gate", config=FINE)
    (plain.root / "run/aks-flex-node/trial.json").unlink(missing_ok=True)
    assert (done.returncode, verdict_of(plain.told())) == (
        (1, "unknown") if is_tried else (0, "ok")
    )


# --- the scripts themselves -----------------------------------------------------------------------


def places(text: str) -> Iterable[int]:
    count = by_day(8, by_night=100)
    start = text.index("{\n") + 1
    end = len(text.rstrip("\n")) - 1
    # bash can't parse this, but keeps the status of the last command.
    within = re.search(r"\[\[[^&\n]*&", text)
    assert within is not None
    return [within.end(), *(start + (end - start) * step // (count - 1) for step in range(count))]


@pytest.mark.parametrize(
    "text", [routes_script(), check_script("10.96.0.0/12", mode="WARN")], ids=["routes", "check"]
)
def test_a_script_truncated_anywhere_fails_and_does_nothing(
    node: NamespaceKernel, plain: Sandbox, text: str
) -> None:
    before = table(node)
    for place in places(text):
        assert plain.run(text[:place]).returncode not in (0, None), text[place - 40 : place]
    assert table(node) == before
    assert list((plain.root / "run").iterdir()) == []


HIDDEN = "nexthop add id 7 via 10.1.0.1 dev eth0\nroute replace default nhid 7\n"
HIDDEN += "\n".join(f"route add 172.16.{n}.0/25 nhid 7" for n in range(50))


# The end of a duplicate address detection would mean another look.
ALSO_IPV6 = """
    addr flush scope link
    addr flush scope link
    addr add 2001:db8:1::4/64 dev eth0 nodad
    route add default dev eth0
    route add unreachable fd00:172::/32 metric 5
    rule add from 2001:db8:1::4 lookup 100
"""


@pytest.mark.parametrize(
    "there", ["", "rule add from 10.1.0.4 lookup 101", HIDDEN], ids=["", "a source", "objects"]
)
def test_more_routes_or_cidrs_need_no_more_processes(
    node: NamespaceKernel, plain: Sandbox, there: str
) -> None:
    """This is also true if CIDRs fail, if connections are looked up, and if ip hides the next hops
    of objects.
    """
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")  # only in this namespace
    run_ip(there)
    run_ip6(ALSO_IPV6)
    plain.count_processes(many(1))  # creates the folder
    assert plain.count_processes(many(2)) == plain.count_processes(many(50))
    cidrs = [cidr for n in range(50) for cidr in (f"172.16.{n}.0/24", f"fd00:172:{n}::/48")]
    one, all_ = (
        plain.count_processes(check_script(*some, mode="WARN")) for some in (cidrs[:2], cidrs)
    )
    assert one == all_
    # Without Python, failures beside a rule for a source aren't certain.
    assert len(plain.told()) == len(cidrs) or verdict_of(plain.told()) == "unknown"
