"""Take a snapshot of a host, including the settings from files that a check or ``diff`` needs."""

from __future__ import annotations

import errno as errnos

import attrs

from hostrouting.boot.host import Host
from hostrouting.host_files.proc_sys import devs_ignoring_linkdown, strict_devs
from hostrouting.host_files.resolv_conf import nameservers
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.errors import FileError, RouteError
from hostrouting.model.verified_uplinks import VerifiedUplink
from phases import CancelScope


def snapshot_of(host: Host, scope: CancelScope | None = None) -> Snapshot:
    """Return a snapshot of a host, or the existing one if the host is itself backed by a snapshot.

    Args:
        host: the host to read.
        scope: cancels the reads.

    Raises:
        RouteError: the kernel can't be queried.
        FileError: a file such as resolv.conf can't be read.
    """
    if host.snapshot is not None:
        return host.snapshot
    routes6 = host.routes6
    try:
        if routes6 is not None:
            routes6.facts()
    except RouteError as error:
        if error.errno != errnos.EAFNOSUPPORT:  # what a kernel without IPv6 says (ipv6.disable=1)
            raise
        routes6 = None
    # The rules that keep an interface match on sources. Such rules may come with a fix, or with a
    # config that isn't installed yet.
    recorded = take_snapshot(host.routes, routes6, selects_source=True, scope=scope)
    is_kept = host.expects_verified
    return attrs.evolve(
        recorded,
        verified=_verified(host, is_kept=is_kept),
        expects_verified=is_kept,
        nameservers=nameservers(host.layout),
        ignoring_linkdown=devs_ignoring_linkdown(host.layout, recorded.links, recorded.kernel),
        strict_devs=strict_devs(host.layout, recorded.links),
    )


def _verified(host: Host, *, is_kept: bool) -> tuple[VerifiedUplink, ...]:
    try:
        return host.verified
    except FileError:
        if is_kept:
            raise
        return ()
