"""Functions that look at a host and change nothing: the command line's own, for programs.

With ``host=Host.recorded(snapshot)`` they tell of the host that was recorded.
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

# What only some of these need is loaded there: it would take a passing check of the command line 30 ms more, of 210.
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
    """Check now that every expected CIDR leaves by the node's uplinks, writing no marker.

    The check waits as the config says: ``wait_seconds`` for a default route, ``settle_seconds`` for InfiniBand's
    addresses. A failure is no error, in either mode.

    Args:
        config: the expected CIDRs.
        host: whom to ask; None: this host.
        scope: ends it, and is told what is waited for.
        document: that the config was read from. A note tells where its ``node.kubelet.nodeIP`` or
            ``networking.dnsServiceIP`` doesn't fit.
        one_event: also foretell the verdict after each event that the host may meet; no verdict and no mode heeds it.

    Returns:
        The report; its verdict is ``unknown``, with a reason, where nothing could be judged.

    Raises:
        RouteError: an image has no kernel to ask.
        phases.Cancelled, phases.TimedOut: the scope ended.
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
    """Check a host by a kernel that may be another than its own, such as one with the routes of a config.

    Args:
        config: the expected CIDRs.
        host: whose name the report bears.
        backend: the kernel to ask.
        scope: ends it.
        nameservers: that the host asks; the fix tells of those that change sides.
        given: the addresses that the config's document gives other components.
    """
    # Nothing changes in a snapshot, nor in a kernel with routes that are only planned, so nothing is waited for.
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
        address: the destination; a unicast address.
        config: what is expected of it; None, or no CIDR around it: that it leaves by an uplink.
        host: whom to ask; None: this host.
        scope: ends the reading.

    Returns:
        The rules that each lookup comes by, the entry that wins, the interface, and the source that is chosen. Without
        a default route to compare with ``is_as_expected`` is None.

    Raises:
        ConfigError: it isn't a unicast IPv4 address.
        RouteError: the kernel can't be asked.
    """
    from hostrouting.overlap import explanation

    config, host, scope = Config() if config is None else to_config(config), to_host(host), scope or CancelScope()
    try:
        address = parse_unicast_address(address)
    except ValueError as error:
        raise ConfigError([("address", str(error))]) from None
    return explanation.explain(address, config, host.routes, scope)


def snapshot(*, host: Host | None = None) -> Snapshot:
    """Record what a check looks at, and what decides about events: routes of all tables, a sysctl, network managers.

    Args:
        host: whom to record; None: this host.

    Returns:
        The snapshot. ``save`` writes it; ``judge`` takes it; ``Host.recorded`` makes a host of it.

    Raises:
        RouteError: the kernel can't be asked.
        FileError: a file can't be read, such as resolv.conf.
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
