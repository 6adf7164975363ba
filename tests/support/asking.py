"""Check a host live, from snapshots and with the boot script, and compare the reports with its
sockets.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
from connecting import disagreements
from leaving import seen_leaving
from nightly import by_day, is_chosen, some
from node import DEFAULT, NICS, nics, run_ip
from scripts import judged_soundly, sandboxes
from wanted import config
from worlds import as_expected
from worlds.hosts import section

import phases
from hostrouting import Config, ExpectedCidr, OverlapReport
from hostrouting.backend import RouteBackend, read_routes
from hostrouting.boot.render import render_check
from hostrouting.config.routing import UplinkRecord
from hostrouting.kernel.model import model_of
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.routes import RouteType
from hostrouting.model.verified_uplinks import VerifiedUplink
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.explanation import explain
from hostrouting.overlap.findings import Finding, FindingKind, NoteKind
from hostrouting.overlap.proposals import Fix

PAGE = (Path(__file__).parent.parent.parent / "docs/howto/snapshots.md").read_text()
(_BY_HAND,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
# Wait until ip monitor has joined its groups, or has written down all that it was told: its socket,
# which has the number of its process, holds nothing, and it sleeps.
_IS_IDLE = """
  until grep -q "^[^ ]* 0 *$! *[89a-f][^ ]* *0 " /proc/self/net/netlink &&
    grep -q ") S " "/proc/$!/stat"; do
    sleep 0.01
  done
"""
BY_HAND = re.sub("sleep 1[;\n]", _IS_IDLE, _BY_HAND)
"""The page's commands for a snapshot by ip, with waits for ip monitor instead of pauses."""
# The first of these omits the details; the second also prints names instead of numbers.
WITHOUT_DETAILS = re.sub(r" -d(?= -4| \$only| nexthop)", "", BY_HAND)
IN_WORDS = WITHOUT_DETAILS.replace(" -N", "")
_READING = (BY_HAND, WITHOUT_DETAILS, IN_WORDS)


# Replacements for ip's version in a snapshot: one that prints every rule attribute, and the real
# one.
KNOWS_ALL, AS_IT_IS = "iproute2-9999.0", r"\g<0>"


def checked(
    backend: RouteBackend,
    expected: Sequence[ExpectedCidr | IPv4Network],
    allowed: Sequence[str] = (),
    foreseen: Sequence[IPv4Network] = (),
    uplinks: Sequence[str] = (),
    verified: Sequence[VerifiedUplink] = (),
) -> tuple[Config, OverlapReport]:
    """Check a host that expects these CIDRs, and return the config and the report."""
    named = {"uplinks": [*uplinks]} if uplinks else {}
    asked = Config.from_mapping(
        {"hostRouting": named | section(as_expected(expected), allowed, foreseen)}
    )
    asked = attrs.evolve(asked, record=UplinkRecord(tuple(verified)))
    return asked, check_overlap(asked, backend, phases.CancelScope())


def recorded(kernel: RouteBackend, kernel6: RouteBackend | None = None) -> Snapshot:
    """Take a snapshot as ``hostrouting snapshot`` does, write it to a file, and load it."""
    with TemporaryDirectory() as root:
        path = Path(root) / "node.json"
        path.write_text(take_snapshot(kernel, kernel6).to_text())
        return Snapshot.load(path)


def recorded_by(commands: str, shell: str = "sh", *, ip: str = KNOWS_ALL) -> Snapshot:
    """Take a snapshot of this host with shell commands, retrying once if the host changed in
    between.

    A newly created link may take up to a second to report its carrier. Commands that modify the
    host run only once.

    Args:
        commands: the shell commands.
        shell: the shell to use.
        ip: the version of ip to imitate.
    """
    found = _record(commands, shell, ip)
    return _record(commands, shell, ip) if found.is_torn and commands in _READING else found


def _record(commands: str, shell: str, ip: str) -> Snapshot:
    # As over ssh, the shell reads the commands from its standard input.
    done = subprocess.run(
        [shell, "-eu"], input=commands, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "node.json"
        path.write_text(re.sub(r"iproute2-[0-9.]+", ip, done.stdout))
        return Snapshot.load(path)


# --- hosts built with ip commands -----------------------------------------------------------------

Told = tuple[tuple[str, str, str, str], ...]


# eth0 has the default route; ib0 is a second interface.
ETH0 = nics(eth0=NICS["eth0"], ib0="")
NODE = f"{ETH0}\naddr add 10.2.0.4/24 dev ib0"


def failures(text: str) -> Told:
    """Parse failures such as ``ib0 at 10.5.9.0 from 10.1.0.4; BLACKHOLE``, each by its interfaces
    or else its kind.
    """
    found = []
    for what, *more in map(str.split, filter(None, text.split("; "))):
        kind, devs = (what, "") if what.isupper() else ("OVERLAP", what)
        places = dict(zip(more[::2], more[1::2], strict=True))
        found.append((kind, devs, places.get("at", "10.5.0.0"), places.get("from", "")))
    return tuple(found)


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@attrs.frozen
class Case:
    """A node and its expected report.

    Args:
        does: ip commands to run after ``node`` and ``default``.
        told: each expected failure, with its first address, if that isn't 10.5.0.0, and its source;
            see ``failures``.
        unknown: the reason for an unknown verdict, or an empty string.
        by_ip: the reason for an unknown verdict on a snapshot taken with ip, if it differs from the
            live one.
        notes: expected kinds of notes about local and broadcast addresses, or None to accept any.
        cidr: the expected CIDR.
        cidrs: several expected CIDRs instead, separated by spaces.
        uplinks: the uplinks in the config, if they are named, separated by spaces.
        ip: the version of ip to imitate.
        node: ip commands that create the node's interfaces.
        default: ip command that adds the default route.
        sysctl: settings below net/ipv4 to set to 1 first.
        shell: shell commands to run after ``node``.
    """

    does: str
    told: Told = attrs.field(default="", converter=failures)
    unknown: str = ""
    by_ip: str = ""
    notes: str | None = ""
    cidr: Any = "10.5.0.0/16"
    cidrs: tuple[str, ...] = attrs.field(default="", converter=words_of)
    uplinks: tuple[str, ...] = attrs.field(default="", converter=words_of)
    ip: str = "iproute2-9999.0"
    node: str = NODE
    default: str = DEFAULT
    sysctl: tuple[str, ...] = ()
    shell: str = ""

    @property
    def verdict(self) -> str:
        return "unknown" if self.unknown else "overlap" if self.told else "ok"

    @cached_property
    def config(self) -> Config:
        return self.config_with()

    def config_with(self, *routes: dict[str, Any]) -> Config:
        named: dict[str, Any] = {"uplinks": self.uplinks} if self.uplinks else {}
        return config(*routes, cidrs=self.cidrs or [self.cidr], **named)

    def build(self) -> None:
        # This makes the kernel choose the next hop by port number, so trying a few ports covers
        # every hop.
        for name in ("fib_multipath_hash_policy", *self.sysctl):
            Path("/proc/sys/net/ipv4", name).write_text("1")
        if self.shell:
            run_ip(self.node)
            subprocess.run(["bash", "-euc", self.shell], check=True, timeout=20)
        run_ip("" if self.shell else self.node, self.default, self.does)


def as_told(report: OverlapReport) -> Told:
    """Return what the boot script tells of each failure; it doesn't name the interface to a wrong
    gateway.
    """
    found = (
        (f, ",".join(f.devs) if f.kind is FindingKind.OVERLAP else "") for f in report.findings
    )
    return tuple((str(f.kind), devs, str(f.probe), str(f.source or "")) for f, devs in found)


def _is_unfixable(finding: Finding, fix: Fix) -> bool:
    parts = [part for each in fix.unfixable for part in each.ranges]
    return any(part.overlaps(other) for part in finding.ranges for other in parts)


def _see_explained(
    address: IpAddress, case: Case, backend: RouteBackend, reports: Sequence[OverlapReport]
) -> None:
    """Check that ``explain`` says of an address what the live report says, if it says anything."""
    fails = any(
        address in part
        for report in reports[:1]
        for found in report.findings
        for part in found.ranges
    )
    try:
        explained = explain(address, case.config, backend, phases.CancelScope())
    except RouteError:
        return
    if not case.unknown:
        assert explained.is_as_expected is not fails
    elif case.unknown == "no-local-table":
        assert (explained.is_as_expected, bool(explained.not_received)) == (None, True)
    assert all(way.is_modelled for way in explained.lookups)


def leaving(address: str, *, count: int = 1) -> frozenset[str | None]:
    """Return the interfaces through which packets to an address leave, trying ``count`` ports."""
    asked = IPv4Address(address)
    return seen_leaving([asked], tries=count)[asked]


def all_say(case: Case, tmp_path: Path) -> list[OverlapReport]:
    """Check the case with the library and both snapshots, and return all reports with a verdict.

    The boot script doesn't contradict them.

    Sockets do what the reports say. By day, only some cases use the snapshot made with ip, only
    some run the script unless it has another verdict, and every sixth address is explained, from
    one of the sources.
    """
    live = NetlinkBackend()
    by_us = model_of(recorded(live).known(Family.IPV4))
    backends: list[tuple[RouteBackend, str]] = [(live, ""), (by_us, "")]
    if case.by_ip or is_chosen(f"by ip {case.does}", one_of=6):
        by_ip = model_of(recorded_by(BY_HAND, ip=case.ip).known(Family.IPV4))
        backends.append((by_ip, case.by_ip))
    reports = []
    for backend, why in backends:
        report = check_overlap(case.config, backend, phases.CancelScope())
        if unknown := case.unknown or why:
            assert (report.verdict, report.reason_kind) == ("unknown", unknown), report
        else:
            _see_verdict(case, report)
            reports.append(report)
    asked = _asked(case, reports)
    for backend, _ in some(backends, one_of=len(backends), first=len(case.does)):
        for address in asked[:: by_day(6, by_night=1)]:
            _see_explained(address, case, backend, reports)
    if reports:
        overlap = case.config.route_overlap
        discarded = (RouteType.BROADCAST, RouteType.MULTICAST)
        routes = read_routes(live)
        unconnected = [route.destination for route in routes if route.type in discarded]
        # Only next hops that take turns, and rules for ports, depend on the port.
        by_port = "port" in case.does or any(len(route.hops) > 1 for route in routes)
        seen = seen_leaving(asked, tries=16 if by_port else 1)
        assert disagreements(reports[0], overlap, seen, unconnected=unconnected) == []
    if is_chosen(f"script {case.does}", one_of=4):
        report = check_overlap(case.config, live, phases.CancelScope())
        for sandbox in sandboxes(case.does, tmp_path):
            done = sandbox.run(render_check(case.config))
            verdict = judged_soundly(sandbox.told(), report)
            assert done.returncode == (verdict != "ok"), done.stderr
    return reports


def _see_verdict(case: Case, report: OverlapReport) -> None:
    """See that a report has the case's verdict and notes, and that each finding has a fix."""
    verdict = "overlap" if case.told else "ok"
    assert (report.verdict, as_told(report)) == (verdict, case.told), report.reason
    kinds = {note.kind for note in report.notes} & {NoteKind.LOCAL, NoteKind.BROADCAST}
    assert case.notes in (None, " ".join(sorted(kinds)))
    for finding in report.findings:
        assert finding.fix or finding.rules or _is_unfixable(finding, report.fix)


def _asked(case: Case, reports: Sequence[OverlapReport]) -> list[IpAddress]:
    """Return an address of each expected CIDR, and the ends of all reported ranges."""
    cidrs = [each.cidr for each in case.config.route_overlap.expected_cidrs]
    asked = {cidr[9 % cidr.num_addresses] for cidr in cidrs}
    for report in reports:
        ranges = [part for finding in report.findings for part in finding.ranges]
        ranges += [part for note in report.notes for part in note.ranges]
        asked.update(end for part in ranges for end in (part[0], part[-1]))
    return sorted(asked)
