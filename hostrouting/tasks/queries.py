"""Functions that examine a host without changing it, which programs can call and the command line uses.

With ``host=Host.recorded(snapshot)`` they examine the host of a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.kernel.waiting import Deadlines
from hostrouting.model.errors import ConfigError
from hostrouting.model.parsing import parse_unicast_address
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.findings import OverlapReport
from hostrouting.overlap.node_ip import NONE_GIVEN, NodeAddresses
from hostrouting.tasks.arguments import to_config, to_host
from phases import CancelScope

# Modules that only some functions need are imported in these functions. Otherwise a passing check would take 30 ms
# longer, in addition to its 210 ms.
if TYPE_CHECKING:
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.kernel.snapshot import Snapshot
    from hostrouting.overlap.explanation import Explanation


def check(
    config: Config,
    *,
    host: Host | None = None,
    scope: CancelScope | None = None,
    document: Mapping[str, Any] | None = None,
    one_event: bool = False,
) -> OverlapReport:
    """Check now that every expected CIDR leaves through the node's uplinks; write no marker.

    The check waits as the config says: ``wait_seconds`` for a default route, and ``settle_seconds`` for InfiniBand's
    addresses. A failing CIDR doesn't raise an error, in either mode.

    Args:
        config: the expected CIDRs.
        host: the host to check; by default this host.
        scope: cancels the check, and is notified of what it waits for.
        document: the document that contains the config. If its ``node.kubelet.nodeIP`` or ``networking.dnsServiceIP``
            doesn't fit, the report has a note about it.
        one_event: whether to predict the verdict after each event that may happen; this doesn't affect the current
            verdict.

    Returns:
        The report. If nothing could be judged, its verdict is ``unknown``, and it has a reason.

    Raises:
        RouteError: the host is an image, which has no kernel to query.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    config, host = to_config(config), to_host(host)
    given, scope = NodeAddresses.of(document), scope or CancelScope()
    report = check_kernel(config, host, host.routes, scope, given=given)
    if not one_event:
        return report
    from hostrouting.overlap.one_event import anticipate

    events = anticipate(config, snapshot(host=host), scope) if report.cidrs else ()
    return attrs.evolve(report, events=events)


def check_kernel(
    config: Config,
    host: Host,
    backend: RouteBackend,
    scope: CancelScope,
    nameservers: Sequence[IPv4Address] = (),
    given: NodeAddresses = NONE_GIVEN,
) -> OverlapReport:
    """Check a host with another kernel than its own, for example one that already has the config's routes.

    Args:
        config: the expected CIDRs.
        host: the host to name in the report.
        backend: the kernel to ask.
        scope: cancels the check.
        nameservers: the host's DNS servers; the fix names those whose traffic it moves to another interface.
        given: the addresses that the config's document contains for other components.
    """
    # Nothing changes in a snapshot or in a kernel with planned routes, so there is nothing to wait for.
    is_live = host.snapshot is None and backend is host.routes
    deadlines = Deadlines.of(config, scope) if is_live else None
    return check_overlap(
        config, backend, scope, deadlines=deadlines, nameservers=nameservers, host=host.name, given=given
    )


def explain(
    address: IPv4Address | str,
    config: Config | None = None,
    *,
    host: Host | None = None,
    scope: CancelScope | None = None,
) -> Explanation:
    """Follow each lookup that a socket makes for an address, through rules and tables.

    Args:
        address: the destination, a unicast address.
        config: the expectations. Without it, or if no CIDR contains the address, it should leave through an uplink.
        host: the host to query; by default this host.
        scope: cancels the reads.

    Returns:
        The rules that each lookup reaches, the entry that wins, the interface, and the chosen source. If there is no
        default route to compare with, ``is_as_expected`` is None.

    Raises:
        ConfigError: the address isn't a unicast IPv4 address.
        RouteError: the kernel can't be queried.
    """
    from hostrouting.overlap import explanation

    config, host, scope = Config() if config is None else to_config(config), to_host(host), scope or CancelScope()
    try:
        address = parse_unicast_address(address)
    except ValueError as error:
        raise ConfigError([("address", str(error))]) from None
    return explanation.explain(address, config, host.routes, scope)


def snapshot(*, host: Host | None = None) -> Snapshot:
    """Record what a check reads, and the sysctl and network managers that decide how events affect the host.

    Args:
        host: the host to record; by default this host.

    Returns:
        The snapshot. Its ``save`` writes it to a file, ``judge`` accepts it, and ``Host.recorded`` makes a host from
        it.

    Raises:
        RouteError: the kernel can't be queried.
        FileError: a file such as resolv.conf can't be read.
    """
    host = to_host(host)
    if host.snapshot is not None:
        return host.snapshot
    from hostrouting.boot.nameservers import nameservers
    from hostrouting.boot.sysctls import devs_ignoring_linkdown
    from hostrouting.kernel.managers import managers_of
    from hostrouting.kernel.snapshot_backend import take_snapshot

    recorded = take_snapshot(host.routes, nameservers=nameservers(host.layout))
    return attrs.evolve(
        recorded,
        ignoring_linkdown=devs_ignoring_linkdown(host.layout, recorded.links),
        managers=managers_of(host.layout.root, recorded.links),
    )
