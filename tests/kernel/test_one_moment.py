"""Test that while routes are changing, a verdict is either correct for a single point in time or
unknown.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from ipaddress import IPv4Address
from pathlib import Path

import asking
import attrs
import pytest
from asking import BY_HAND, recorded_by
from leaving import Leaving, SocketKind
from nightly import by_day
from node import DEFAULT, attempt, churning, run_ip, until
from scripts import Sandbox, other_ip, sandboxes, with_constants
from wanted import config

import phases
from hostrouting.backend import RouteBackend
from hostrouting.boot.render import render_check
from hostrouting.kernel.model import model_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.family import Family
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.overlap.findings import OverlapReport

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(by_day(300, by_night=7200))]

# linux/netlink.h, linux/rtnetlink.h
_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NEXTHOP = 270, 1, 32

# Many checks at once take longer.
PATIENCE = by_day(240, by_night=600)
TRIES = by_day(3, by_night=2000)
CIDR = "10.5.0.0/16"
CONFIG = config(cidrs=[CIDR])
SCRIPT = render_check(CONFIG)
NODE = f"{asking.NODE}\n{DEFAULT}\n"


@attrs.frozen
class Churn:
    """A sequence of changes during which the correct verdict stays the same.

    Args:
        before: the ip commands to run first.
        steps: the ip commands to repeat in a loop.
        verdict: the verdict that is correct throughout.
        asked: destination addresses of the test packets. If the verdict is overlap, packets to at
            least one of them leave through an interface other than eth0.
        matters: whether a check may be torn. If not, none is.
    """

    before: str
    steps: tuple[str, ...]
    verdict: str
    asked: tuple[str, ...]
    matters: bool = True


CHURNS = {
    # The shadowing routes alternate, but one of them always exists.
    "one of two shadows exists": Churn(
        # Reading all of these routes takes about as long as one change.
        "rule add to 10.5.0.0/16 pref 10 lookup 200\n"
        + "".join(f"route add 10.5.{n // 200 + 1}.{n % 200} via 10.1.0.1\n" for n in range(200))
        + "route add 10.5.0.0/32 dev ib0\nroute add 10.5.255.255/32 dev ib0",
        tuple(
            f"route {verb} {one} dev ib0"
            for one in ("10.5.0.0/32", "10.5.255.255/32")
            for verb in ("del", "add")
        ),
        "overlap",
        ("10.5.0.0", "10.5.255.255"),
    ),
    # The new shadowing route is added before the old one is deleted.
    "the shadow is in main, or a rule leads to it": Churn(
        "route add 10.5.0.9/32 dev ib0 table 100\nrule add pref 50 lookup 100",
        (
            "route add 10.5.0.9/32 dev ib0",
            "rule del pref 50",
            "rule add pref 50 lookup 100",
            "route del 10.5.0.9/32",
        ),
        "overlap",
        ("10.5.0.9",),
    ),
    "routes elsewhere": Churn(
        "route add 10.5.0.9/32 dev ib0",
        tuple(
            f"route {verb} 20.0.{n}.0/24 via 10.2.0.1" for n in range(50) for verb in ("add", "del")
        ),
        "overlap",
        ("10.5.0.9",),
        matters=False,
    ),
    "two alternating rules": Churn(
        "route add 10.5.0.9/32 dev ib0 table 100\nrule add pref 50 lookup 100",
        (
            *("rule add to 10.5.0.9 pref 60 lookup 100", "rule del pref 50"),
            *("rule add pref 50 lookup 100", "rule del pref 60"),
        ),
        "overlap",
        ("10.5.0.9",),
    ),
    "an address is added and deleted": Churn(
        "addr add 10.5.0.4/24 dev eth0",
        ("addr del 10.5.0.4/24 dev eth0", "addr add 10.5.0.4/24 dev eth0"),
        "ok",
        ("10.5.0.9",),
    ),
}
# By day: a change of routes alone, one of routes and rules, and one elsewhere.
CHOSEN = dict([*CHURNS.items()][: by_day(3, by_night=5)])


def checked(backend: RouteBackend) -> OverlapReport:
    return check_overlap(CONFIG, backend, phases.CancelScope())


def see(churn: Churn) -> None:
    """After each step, check that packets behave as the verdict predicts."""
    with Leaving("eth0", "ib0") as leaving:
        for step in ("", *churn.steps):
            run_ip(step)
            seen = {
                leaving.end(SocketKind.DATAGRAM, IPv4Address(address)) for address in churn.asked
            }
            assert (seen == {"eth0"}) is (churn.verdict == "ok"), step


def is_right(report: OverlapReport, churn: Churn) -> bool:
    """Return whether a report's verdict is correct, or unknown because of the changes."""
    return report.verdict in (churn.verdict, "unknown") and report.reason_kind in (
        None,
        "check-failed",
    )


def booted(sandbox: Sandbox) -> str:
    """Run the boot script and return its verdict."""
    done = sandbox.run(SCRIPT)
    kinds = {line.partition(":")[0] for line in sandbox.told()} or {"ok"}
    assert (done.returncode == 0) is (kinds == {"ok"})
    return {"check-failed": "unknown", "OVERLAP": "overlap"}.get(*kinds, *kinds)


@pytest.mark.parametrize("churn", CHOSEN.values(), ids=CHOSEN)
def test_no_verdict_mixes_two_states(churn: Churn, kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The check runs live, on both kinds of snapshot, as an explanation, and at boot."""
    run_ip(NODE + churn.before)
    see(churn)
    address, explained = IPv4Address(churn.asked[0]), []
    with churning(churn.steps):
        reports = [checked(NetlinkBackend()) for _ in range(TRIES)]
        taken = [take_snapshot(NetlinkBackend()).to_text() for _ in range(TRIES)]
        by_ip = [recorded_by(BY_HAND) for _ in range(by_day(1, by_night=200))]
        if len(churn.asked) == 1:
            explained = [
                explain(address, CONFIG, NetlinkBackend(), phases.CancelScope())
                for _ in range(TRIES)
            ]
        told = {
            booted(each)
            for each in sandboxes(repr(churn), tmp_path)
            for _ in range(by_day(1, by_night=200))
        }
    assert [report for report in reports if not is_right(report, churn)] == []
    assert churn.matters or {report.verdict for report in reports} | told == {churn.verdict}
    for snapshot in map(Snapshot.from_document, map(json.loads, taken)):
        report = checked(model_of(snapshot.known(Family.IPV4)))
        assert is_right(report, churn)
        assert (report.verdict == "unknown") is snapshot.is_torn
    assert all(
        is_right(checked(model_of(snapshot.known(Family.IPV4))), churn) for snapshot in by_ip
    )
    elsewhere = "an event elsewhere was taken for one that matters"
    assert churn.matters or not any(found.is_torn for found in explained), elsewhere
    assert all(
        found.is_torn or found.is_as_expected is (churn.verdict == "ok") for found in explained
    )
    assert told <= {churn.verdict, "unknown"}


def listeners() -> int:
    """Return how many sockets in this namespace are subscribed to links, addresses, routes, rules
    and nexthops.
    """
    rows = [
        line.split() for line in Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:]
    ]
    return sum(int(row[3], 16) & 0x800000D1 == 0x800000D1 for row in rows)


def test_a_stopped_boot_script_leaves_no_listener(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The process that becomes the listener may lose a SIGTERM that comes before it runs ip."""
    run_ip(NODE)
    sandbox, deaf = Sandbox(tmp_path), 'trap "" TERM; exec "$ROOT/ip-itself" "$@"'
    assert sandbox.run(SCRIPT, prepare=other_ip(monitor=deaf)).returncode == 0
    until(lambda: listeners() == 0)
    running = sandbox.start(
        SCRIPT, prepare=other_ip(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done", monitor=deaf)
    )
    until(lambda: listeners() == 1)
    running.terminate()
    (tmp_path / "go").touch()
    running.communicate(timeout=20)
    assert running.returncode == -signal.SIGTERM
    until(lambda: listeners() == 0)


# Joins the groups for links, addresses, routes, rules and nexthop objects, and never reads.
_DEAF = f"""
import socket, sys, time
deaf = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
deaf.bind((0, {0x800000D1}))
deaf.setsockopt({_SOL_NETLINK}, {_ADD_MEMBERSHIP}, {_GROUP_NEXTHOP})
open(sys.argv[1], "w").close()
sys.stdin.read()
"""


def test_a_process_that_never_reads_its_events_delays_no_check(
    kernel: NamespaceKernel, tmp_path: Path
) -> None:
    """Joining netlink groups takes no privilege."""
    run_ip(NODE)
    (tmp_path / "deaf.py").write_text(_DEAF)
    os.mkfifo(tmp_path / "end")
    deaf = f'{sys.executable} -I "$ROOT/deaf.py" "$ROOT/is-deaf" <"$ROOT/end" >/dev/null 2>&1 &'
    monitor = (
        f'{deaf} exec 3>"$ROOT/end"; until [ -e "$ROOT/is-deaf" ]; do sleep 0.01; done; '
        'exec "$ROOT/ip-itself" "$@"'
    )
    # The first check is repeated, because of this change.
    change = '[ "$calls" != 1 ] || "$ROOT/ip-itself" link set ib0 mtu 1400'
    text = with_constants(SCRIPT, HEAR_SECONDS=60)
    done = Sandbox(tmp_path).run(text, prepare=other_ip(change, monitor=monitor))
    assert (tmp_path / "is-deaf").exists()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "churn",
    [None, *CHURNS.values()][: by_day(2, by_night=6)],
    ids=["nothing changes", *CHURNS][: by_day(2, by_night=6)],
)
def test_checks_without_the_lock_do_not_disturb_each_other(
    kernel: NamespaceKernel, tmp_path: Path, churn: Churn | None
) -> None:
    """Whatever holds the lock, all instances of a consumer may start at the same time."""
    before = (
        "".join(f"route add 10.5.{n}.0/24 via 10.1.0.1\n" for n in range(100))
        if churn is None
        else churn.before
    )
    run_ip(NODE + before)
    sandbox = Sandbox(tmp_path)
    lock = tmp_path / "run/aks-flex-node/lock"
    lock.parent.mkdir(parents=True)
    text = with_constants(SCRIPT, GATE_SECONDS=1)
    # A look during changes may be without a verdict, but for no other reason.
    changed = "check-failed: the routes changed each time that they were read; try again later"
    told = Counter[str]()
    with lock.open("w") as held, churning(churn.steps) if churn else nullcontext():
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(by_day(1, by_night=20)):
            running = [sandbox.start(text, "gate") for _ in range(by_day(4, by_night=24))]
            for process in running:
                out, err = process.communicate(timeout=PATIENCE)
                assert (process.returncode == 0) is (
                    out == "every expected CIDR leaves through eth0\n"
                ), err
                lacks = err.partition("the check couldn't judge anything: ")[2].partition("\n")[0]
                assert lacks in ("", changed)
                told[lacks or ("ok" if out else "overlap")] += 1
    verdict = "ok" if churn is None else churn.verdict
    assert {*told} <= ({verdict} if churn is None or not churn.matters else {verdict, changed})
    marker = "detected" if verdict == "overlap" else "ok"
    left = {path.name for path in lock.parent.iterdir()}
    assert left == {"lock", f"route-overlap.{marker}"} or (
        changed in told and left == {"lock", "route-overlap.detected"}
    )


@pytest.mark.parametrize(
    "does", ["echo it fails; exit 3", "exec sleep 20", 'exec "$ROOT/ip-itself" monitor link']
)
def test_a_boot_script_that_can_not_listen_gives_no_verdict(
    kernel: NamespaceKernel, tmp_path: Path, does: str
) -> None:
    run_ip(NODE)
    sandbox = Sandbox(tmp_path)
    seconds = 60 if "exit" in does else 1
    done = sandbox.run(with_constants(SCRIPT, HEAR_SECONDS=seconds), prepare=other_ip(monitor=does))
    assert done.returncode == 1
    why = (
        "ip monitor has ended: it fails"
        if "exit" in does
        else "/proc/net/netlink shows no idle ip monitor in 1 s"
    )
    assert sandbox.told() == [f"check-failed: can't listen for changes: {why}"]


def test_a_boot_script_kills_only_its_own_monitors(kernel: NamespaceKernel, tmp_path: Path) -> None:
    """The PID of one that has ended may be another process's, such as the caller's."""
    kills = """{ echo "kills $(<"/proc/$1/comm")"; kill -9 "$1"; }"""
    script = render_check(config(cidrs=[CIDR], waitSeconds=2)).replace('kill -9 "$1"', kills)
    ends = '[[ " $* " = *" rule "* ]] || exit; exec "$ROOT/ip-itself" "$@"'
    done = Sandbox(tmp_path).run(script, prepare=other_ip(monitor=ends))
    killed = {line for line in done.stdout.splitlines() if line.startswith("kills")}
    assert (done.returncode, killed) == (1, {"kills ip-itself"})
    other = script.replace('end_child "$LISTENER"', 'end_child "$LISTENER"; end_child "$PPID"')
    done = Sandbox(tmp_path).run(
        other, before=("bash", "-c", '"$@"; exit', "bash"), prepare=other_ip(monitor="exit 3")
    )
    assert (done.returncode, "kills" in done.stdout) == (1, False)


def test_interfaces_that_swap_names_are_kept_apart(kernel: NamespaceKernel) -> None:
    run_ip(NODE + "route add 10.5.0.9/32 dev ib0")
    steps = tuple(
        f"link set {old} name {new}" for old, new in (("eth0", "x"), ("ib0", "eth0"), ("x", "ib0"))
    )
    if attempt("ip", "-batch", "-", stdin="\n".join(steps)).returncode:
        pytest.skip("before Linux 6.2 no interface that is up gets another name")
    with churning(steps):
        for _ in range(TRIES):
            assert checked(NetlinkBackend()).verdict in ("overlap", "unknown")
            assert checked(
                model_of(take_snapshot(NetlinkBackend()).known(Family.IPV4))
            ).verdict in (
                "overlap",
                "unknown",
            )


def test_a_torn_snapshot_gets_no_verdict(kernel: NamespaceKernel) -> None:
    run_ip(NODE)
    torn = attrs.evolve(take_snapshot(kernel), is_torn=True)
    backend = model_of(Snapshot.from_document(json.loads(torn.to_text())).known(Family.IPV4))
    report = checked(backend)
    assert (report.verdict, report.reason_kind) == ("unknown", "check-failed")
    assert "while the snapshot was taken" in str(report.reason)
    found = explain(IPv4Address("10.5.0.9"), CONFIG, backend, phases.CancelScope())
    assert (found.is_torn, found.is_as_expected, found.to_json()["isTorn"]) == (True, True, True)


OBJECTS = """
    nexthop add id 3 via 10.2.0.1 dev ib0
    nexthop add id 4 via 10.1.0.1 dev eth0
    nexthop add id 9 group 3/4
    route add 10.5.0.0/16 nhid 9
    route add 10.6.0.0/16 nhid 4
"""


@pytest.mark.parametrize("missing", [3, 9])
def test_a_snapshot_without_a_needed_nexthop_object_is_unknown(
    kernel: NamespaceKernel, missing: int
) -> None:
    run_ip(NODE + OBJECTS)
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")  # only in this namespace
    with Leaving("eth0", "ib0") as leaving:
        assert {
            leaving.end(SocketKind.DATAGRAM, IPv4Address("10.5.0.0") + n) for n in range(64)
        } == {"eth0", "ib0"}
    assert checked(NetlinkBackend()).verdict == "overlap"
    objects = "ip -j -N -d nexthop show"
    keep = (
        "import json, sys; "
        f"json.dump([each for each in json.load(sys.stdin) if each['id'] != {missing}], sys.stdout)"
    )
    whole = recorded_by(BY_HAND)
    lacking = recorded_by(BY_HAND.replace(objects, f'{objects} | {sys.executable} -c "{keep}"'))
    assert (whole.is_torn, lacking.is_torn) == (False, False)
    assert checked(model_of(whole.known(Family.IPV4))).verdict == "overlap"
    report = checked(model_of(lacking.known(Family.IPV4)))
    assert (report.verdict, report.reason_kind) == ("unknown", "check-failed")
    assert "10.5.0.0/16" in str(report.reason)
    assert (
        check_overlap(
            config(cidrs=["10.6.0.0/16"]),
            model_of(lacking.known(Family.IPV4)),
            phases.CancelScope(),
        ).verdict
        == "ok"
    )
    # The kernel removes a deleted nexthop from its group, so only the monitor notices the change.
    torn = recorded_by(BY_HAND.replace(objects, f"ip nexthop del id {missing}; {objects}"))
    assert checked(model_of(torn.known(Family.IPV4))).verdict == "unknown"


@pytest.mark.parametrize("route", ["default", "10.5.0.0/16"])
def test_a_snapshots_hop_without_an_interface_is_unknown(
    kernel: NamespaceKernel, route: str
) -> None:
    run_ip(
        f"{NODE}route replace {route} nexthop via 10.1.0.1 dev eth0 nexthop via 10.2.0.1 dev ib0"
    )
    document = take_snapshot(kernel).to_document()
    (item,) = (each for each in document["routes"] if each["dst"] == route)
    del item["nexthops"][1]["dev"]
    report = checked(model_of(Snapshot.from_document(document).known(Family.IPV4)))
    assert (report.verdict, report.reason_kind) == ("unknown", "check-failed")
    assert route in str(report.reason)
