"""Compare the predicted verdict for each event with the verdict after triggering the event."""

from __future__ import annotations

import os

import attrs
from node import attempt, run_ip

import phases
from audit.examine import Audit
from audit.making import make
from hostrouting import Layout, OverlapReport, Snapshot
from hostrouting.host_files.proc_sys import devs_ignoring_linkdown
from hostrouting.kernel.after_event import lease_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.snapshot_backend import take_snapshot
from hostrouting.kernel.unshare import Namespace
from hostrouting.model.events import EventKind, HostEvent
from hostrouting.model.family import Family
from hostrouting.model.links import Hardware
from hostrouting.overlap.findings import Outlook
from hostrouting.overlap.one_event import anticipate, touching_devs
from hostrouting.report import EventVerdict

_KINDS = (EventKind.FLAP, EventKind.CARRIER_LOST, EventKind.GONE, EventKind.INTO_POD)


class EventAudit(Audit):
    """An audit that triggers every event on a host. See ``Audit`` for the arguments."""

    def run(self) -> None:
        """Predict the verdict for each event, and then trigger it on a fresh copy of the host."""
        now, snapshot = self._live(), self._snapshot()
        told = {
            each.event: each for each in anticipate(self.config, snapshot, phases.CancelScope())
        }
        touching = ("lo", *touching_devs(self.config, snapshot))
        devs = [link.name for link in snapshot.links if not link.name.startswith("peer-")]
        passed = [dev for dev in devs if dev not in touching]
        pod = Namespace()
        for event in (*told, *(HostEvent(kind, dev) for dev in passed for kind in _KINDS)):
            self._make()
            if _happens(self._kernel, event, pod):
                make([])
                self._hold(event, told.get(event), now, self._live())

    def _snapshot(self) -> Snapshot:
        found = take_snapshot(self._kernel)
        # Interfaces of type InfiniBand can't be created on a test kernel.
        links = (
            attrs.evolve(link, hardware=Hardware.INFINIBAND) if link.name.startswith("ib") else link
            for link in found.links
        )
        ignoring = devs_ignoring_linkdown(Layout(), found.links, found.kernel)
        return attrs.evolve(found, links=tuple(links), ignoring_linkdown=ignoring)

    def _hold(
        self, event: HostEvent, told: EventVerdict | None, now: OverlapReport, live: OverlapReport
    ) -> None:
        if told is not None and told.outlook is Outlook.UNPREDICTABLE:
            self.unknown.append(f"event: {told.reason}")
            return
        said, so = _words(now if told is None else told), _words(live)
        if said != so:
            where = "passed over" if told is None else "foretold"
            self._tell("event", [f"{event}: {where} {said}, and it is {so}"])


def _words(report: OverlapReport | EventVerdict) -> tuple[object, ...]:
    found = (
        (str(e.kind), str(e.cidr), str(e.probe), e.devs, str(e.source), e.ranges)
        for e in report.findings
    )
    return (str(report.verdict), (report.reason or "").partition(":")[0], *found)


def _happens(kernel: NamespaceKernel, event: HostEvent, pod: Namespace) -> bool:
    """Trigger an event, and return whether this was possible."""
    dev, (link,) = event.subject, (each for each in kernel.links() if each.name == event.subject)
    if event.kind is EventKind.FLAP:
        if link.is_up:
            run_ip(f"link set {dev} down\nlink set {dev} up")
        return link.is_up
    if event.kind is EventKind.CARRIER_LOST:
        if link.has_carrier:
            run_ip(f"link set peer-{dev} down")
        return link.has_carrier
    if event.kind is EventKind.GONE:
        run_ip(f"link del {dev}")
    elif event.kind is EventKind.INTO_POD:
        run_ip(f"link set {dev} netns /proc/{os.getpid()}/fd/{pod.fd}")
    elif event.kind is EventKind.LATE_ADDRESS:
        run_ip(f"link set {dev} up\naddress add {event.address} dev {dev}")
    else:
        _renumber(kernel, event)
    return True


def _renumber(kernel: NamespaceKernel, event: HostEvent) -> None:
    """Change an address and its default route like networkd does for a new lease."""
    lease = lease_of(take_snapshot(kernel), event.subject)
    assert event.address is not None
    assert lease is not None
    old, _, default, leased = lease
    kernel.add_address(event.subject, str(event.address), metric=old.metric)
    assert not kernel.delete(leased)
    hop = attrs.evolve(default.hops[0], gateway=event.gateway)
    words = f"proto dhcp table main metric {default.metric} {hop.words(Family.IPV4)} {'onlink' if hop.onlink else ''}"
    source = "" if default.source is None else f"src {event.address.ip}"
    # The kernel may refuse the gateway.
    attempt("ip", *f"route append default {words} {source}".split())
    kernel.del_address(event.subject, f"{old.local}/{old.prefix_length}")
