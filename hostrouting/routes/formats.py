"""Render resolved routes for other tools: ip-route(8), netplan(5) and systemd.network(5).

This module does no I/O. The output contains only addresses, numbers and names that ``parse_device``
accepts. Inherited interface names come from the kernel, which would allow ``$(reboot)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import attrs

from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family
from hostrouting.model.parsing import parse_device
from hostrouting.model.routes import NextHop, Protocol, Route

_IP = """\
# Each line adds a route until the next boot and never changes an existing one. "File exists": \
there is one with this
# destination and metric, ours or another program's; "ip {} route show exact DESTINATION" shows it.
"""

_NETPLAN = """\
# For a file of its own like /etc/netplan/90-hostrouting.yaml, mode 600; then "netplan try", \
which goes back by itself.
# The interfaces must be in netplan already ("netplan get" shows them): one that isn't would be \
taken over, and lose its
# addresses. Where one has another ID there, or isn't below "ethernets:", it needs the same ID \
and place here.
# Even trying drops what others have added to these interfaces (a CNI, "hostrouting apply"): let \
them add theirs again.
"""

_NETWORKD = """\
# {dev}: for a file of its own, /etc/systemd/network/NAME.network.d/90-hostrouting.conf. \
NAME.network is the file that
# "networkctl status {dev}" calls Network File, in whatever folder that one lies. Then \
"networkctl reload".
# That drops what others have added to {dev} (a CNI, "hostrouting apply"): let them add theirs \
again. A mere
# "networkctl reconfigure" drops it too, and doesn't read the file.
"""

# netplan 0.106 writes larger metrics as negative numbers, which networkd ignores. netplan 1.1 still
# drops the largest metric.
_NETPLAN_METRIC_MAX = 2**31 - 1

# networkd reads at most 8192 [Route] sections for an interface (routes_max in networkd-route.c),
# including those that netplan generates. Some of the sections may be for other routes.
NETWORKD_ROUTES = 8000


def as_ip(routes: Sequence[Route]) -> str:
    """Render routes as commands that are safe to paste, even twice.

    The commands use ``add``, which fails if a route exists (EEXIST), because ``replace`` would
    overwrite DHCP routes. The protocol is static, because our next run would remove routes with our
    own protocol.

    Args:
        routes: the result of ``resolve``, in the same order.

    Returns:
        A comment and a line for each route, or an empty string if there are no routes.

    Raises:
        RouteError: an interface name isn't safe to paste. The error lists all routes through such
            interfaces.
    """
    lines = _each(routes, "as a command", _ip_line)
    families = " or ".join(sorted({f"-{route.family.value}" for route in routes}))
    return _IP.format(families) + "".join(line for _, line in lines) if lines else ""


def as_netplan(routes: Sequence[Route]) -> str:
    """Render routes as YAML for a separate netplan file, grouped by interface.

    Args:
        routes: the result of ``resolve``.

    Returns:
        The file contents, starting with a comment, or an empty string if there are no routes.

    Raises:
        RouteError: netplan doesn't support some routes, or an interface name isn't safe. The error
            lists these routes, each with the reason and, if there is one, an alternative.
    """
    items = _each(routes, "for netplan", _netplan_item)
    if not items:
        return ""
    parts = [_NETPLAN, "network:\n  version: 2\n  ethernets:\n"]
    for dev, texts in _by_device(items).items():
        # Without quotes, YAML would parse names like 1e3, on or null as other types.
        parts += [f'    "{dev}":\n      routes:\n', *texts]
    return "".join(parts)


def as_networkd(routes: Sequence[Route]) -> str:
    """Render routes as a drop-in for each interface's .network file (systemd 249 or later).

    Args:
        routes: the result of ``resolve``.

    Returns:
        The concatenated drop-ins, or an empty string if there are no routes. Each drop-in starts
        with a comment that begins with ``# DEVICE:``. Multipath routes are listed under their first
        hop's interface.

    Raises:
        RouteError: networkd doesn't support some routes, or an interface name isn't safe. The error
            lists these routes, each with the reason and, if there is one, an alternative.
    """
    sections = _by_device(_each(routes, "for systemd-networkd", _networkd_section))
    return "\n".join(
        _NETWORKD.format(dev=dev) + "\n".join(texts) for dev, texts in sections.items()
    )


def too_many_for_networkd(routes: Sequence[Route]) -> tuple[str, ...]:
    """Return a warning for each interface with so many routes that networkd may drop some."""
    counts = Counter(route.hops[0].dev for route in routes)
    drops = "systemd-networkd drops routes of an interface's files beyond 8,192"
    advice = "use shorter prefixes, or install these routes with hostrouting apply"
    return tuple(
        f"{dev} gets {count:,} routes: {drops}, and still reports success; {advice}"
        for dev, count in counts.items()
        if count > NETWORKD_ROUTES
    )


def _each(
    routes: Sequence[Route],
    purpose: str,
    write: Callable[[Route], str],
) -> list[tuple[str, str]]:
    """Render each route, and return pairs of its first hop's interface and the text.

    Raises:
        RouteError: ``write`` or ``parse_device`` rejected some routes.
    """
    written: list[tuple[str, str]] = []
    refusals: list[Refusal] = []
    for route in routes:
        try:
            devs = [parse_device(hop.dev or "") for hop in route.hops]
            written.append((devs[0], write(route)))
        except RouteError as error:
            refusals.append(Refusal(f"can't write {route} {purpose}: {error.message}", error.hint))
        except ValueError as error:
            refusals.append(Refusal(f"can't write {route} {purpose}: {error}"))
    if refusals:
        raise RouteError.of(refusals)
    return written


def _by_device(written: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for dev, text in written:
        texts.setdefault(dev, []).append(text)
    return texts


def _ip_line(route: Route) -> str:
    return f"ip -{route.family.value} route add {attrs.evolve(route, protocol=Protocol.STATIC)}\n"


def _netplan_item(route: Route) -> str:
    if len(route.hops) > 1:
        hint = f"name one dev of {', '.join(route.devs)}, or use networkd or ip"
        raise RouteError("it has no multipath routes", hint=hint)
    (hop,) = route.hops
    if hop.gateway is not None and hop.gateway.version != route.family.value:
        raise RouteError(
            "it accepts no IPv6 gateway for an IPv4 destination (RFC 8950)",
            hint="use networkd or ip",
        )
    if route.metric > _NETPLAN_METRIC_MAX:
        reason = f"it loses metrics above {_NETPLAN_METRIC_MAX}"
        raise RouteError(reason, hint="choose a smaller one, or use networkd or ip")
    rows = [
        f"to: {route.destination}",
        "scope: link" if hop.gateway is None else f"via: {hop.gateway}",
    ]
    rows += ["on-link: true"] if hop.onlink else []
    rows += _rest(route, "from: ", "mtu: ", "metric: ")
    return "        - " + "\n          ".join(rows) + "\n"


def _networkd_section(route: Route) -> str:
    rows = ["[Route]", f"Destination={route.destination}"]
    if len(route.hops) == 1:
        rows += _networkd_hop(route.hops[0], route.family)
    else:
        rows += map(_networkd_hop_of_many, route.hops)
    rows += _rest(route, "PreferredSource=", "MTUBytes=", "Metric=")
    return "\n".join(rows) + "\n"


def _rest(
    route: Route,
    source: str,
    mtu: str,
    metric: str,
) -> list[str]:
    """Return the lines for a route's source, MTU and metric."""
    rest = ((source, route.source), (mtu, route.mtu), (metric, route.metric or None))
    return [f"{key}{value}" for key, value in rest if value is not None]


def _networkd_hop(hop: NextHop, family: Family) -> list[str]:
    if hop.gateway is None:
        return ["Scope=link"] if family is Family.IPV4 else []
    # Without GatewayOnLink=, networkd assumes "yes" on interfaces without a static address,
    # although DHCP makes their gateways reachable.
    return [f"Gateway={hop.gateway}", f"GatewayOnLink={'yes' if hop.onlink else 'no'}"]


def _networkd_hop_of_many(hop: NextHop) -> str:
    if hop.gateway is None or hop.onlink:
        what = "without a gateway" if hop.gateway is None else "with an onlink gateway"
        raise RouteError(
            f"it has no multipath hops {what}",
            hint="name one interface as dev, or use ip",
        )
    return f"MultiPathRoute={hop.gateway}@{hop.dev} {hop.weight}"
