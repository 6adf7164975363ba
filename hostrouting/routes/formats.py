"""Render resolved routes and policy rules for other tools: ip(8), netplan(5), systemd.network(5).

This module does no I/O. The kernel allows an interface name such as ``$(reboot)``. So the output
contains only addresses, numbers, and interface names that ``parse_device`` accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

import attrs

from hostrouting.model.errors import Refusal, RouteError
from hostrouting.model.family import Family
from hostrouting.model.parsing import parse_device
from hostrouting.model.routes import (
    FIX_IN_PLACE,
    PRINTED,
    NextHop,
    Route,
    Table,
    how_to_delete_printed,
)
from hostrouting.model.rules import Rule
from hostrouting.model.values import frozen

_IP = """\
# Each line adds a route until the next boot and never changes an existing one. "File exists": \
there is one with this
# destination and metric, ours or another program's; "ip {} route show exact DESTINATION" shows it.
"""

_IP_RULES = """\
# Each line adds a policy rule until the next boot; "ip {} rule" shows them.
"""

_IP_LASTING = """\
# To make this last, write the same fix into CONFIG ({}), or as \
netplan's or networkd's.
# Before hostrouting apply, which takes what is added here for another program's, delete it:
#   {}
"""

_IP_LISTED = """\
# {} does the same, and lasts.
# If that can't be run now: before it, delete what is added here{}:
#   {}
"""

_HELD = ", beside which the gate holds each start"

_NOT_IN_BOTH = """\
# Take these routes out of staticRoutes: here, they don't follow a gateway that moves, and the \
gate would then hold each
# start.
"""

_NETPLAN = (
    """\
# For a file of its own like /etc/netplan/90-hostrouting.yaml, mode 600; then "netplan try", \
which goes back by itself.
# The interfaces must be in netplan already ("netplan get" shows them): one that isn't would be \
taken over, and lose its
# addresses. Where one has another ID there, or isn't below "ethernets:", it needs the same ID \
and place here.
# Even trying drops what others have added to these interfaces (a CNI, "hostrouting apply"): let \
them add theirs again.
"""
    + _NOT_IN_BOTH
)

_NETWORKD = (
    """\
# {dev}: for a file of its own, /etc/systemd/network/NAME.network.d/90-hostrouting.conf. \
NAME.network is the file that
# "networkctl status {dev}" calls Network File, in whatever folder that one lies. Then \
"networkctl reload".
# That drops what others have added to {dev} (a CNI, "hostrouting apply"): let them add theirs \
again. A mere
# "networkctl reconfigure" drops it too, and doesn't read the file.
"""
    + _NOT_IN_BOTH
)

# netplan 0.106 writes metrics above this number as negative numbers, which networkd ignores.
# netplan 1.1 still drops the largest metric, 2**32 - 1.
_NETPLAN_METRIC_MAX = 2**31 - 1

# networkd reads at most 8192 [Route] sections for an interface (routes_max in networkd-route.c),
# including those that netplan generates. The limit here is lower, because the files may have
# sections for other routes.
NETWORKD_ROUTES = 8000


@frozen
class PlacedRule:
    """A policy rule, and the interface whose netplan or networkd file contains the rule.

    Args:
        rule: the rule to write.
        dev: the interface whose file gets the rule.
    """

    rule: Rule
    dev: str


def _about_holding(rules: Iterable[PlacedRule]) -> str:
    """Return why the gate holds starts, if there are rules of kept addresses, or else nothing."""
    return _HELD if any(each.rule.source is not None for each in rules) else ""


def as_ip(
    routes: Sequence[Route],
    rules: Sequence[PlacedRule] = (),
    in_place: str = FIX_IN_PLACE,
    listing: str = "",
) -> str:
    """Render routes and rules as commands that are safe to paste, even twice.

    The commands use ``add``, which fails if a route or rule exists: ``replace`` would overwrite
    DHCP's routes. The routes and rules have a protocol of their own: hostrouting's next run would
    remove those with protocol 217.

    Args:
        routes: the result of ``resolve``, in the same order.
        rules: the policy rules, in the order in which they are added.
        in_place: the command that writes the same fix into CONFIG.
        listing: the command that installs the same, if CONFIG lists it already.

    Returns:
        A line for each route and rule, with a comment above all routes, one above all rules, and
        one at the top on how to make them last.
        Without routes and rules, an empty string.

    Raises:
        RouteError: an interface name isn't safe to paste. The error lists all routes through
            interfaces with such names.
    """
    lines = [line for _, line in _each(routes, "as a command", _ip_line)]
    of_rules = [_ip_rule(placed.rule) for placed in rules]
    if not (lines or of_rules):
        return ""
    families = {route.family for route in routes}
    ruled = {_family_of(each.rule) for each in rules}
    deleting = _how_to_delete(families | ruled)
    text = _IP_LASTING.format(in_place, deleting)
    if listing:
        text = _IP_LISTED.format(listing, _about_holding(rules), deleting)
    if lines:
        text += _IP.format(_options(families)) + "".join(lines)
    if of_rules:
        text += _IP_RULES.format(_options(ruled)) + "".join(of_rules)
    return text


def _how_to_delete(families: Container[Family]) -> str:
    return " && ".join(how_to_delete_printed(each) for each in Family if each in families)


def _options(families: Iterable[Family]) -> str:
    return " or ".join(sorted(f"-{family.value}" for family in families))


def as_netplan(routes: Sequence[Route], rules: Sequence[PlacedRule] = ()) -> str:
    """Render routes and rules as YAML for a separate netplan file, grouped by interface.

    Args:
        routes: the result of ``resolve``.
        rules: the policy rules.

    Returns:
        The file contents, starting with a comment, or an empty string if there are none.

    Raises:
        RouteError: netplan doesn't support some routes or rules, or an interface name isn't safe.
            The error lists these routes and rules, each with the reason and, if there is one, an
            alternative.
    """
    of_routes = _by_device(_each(routes, "for netplan", _netplan_item))
    of_rules = _by_device(_each_rule(rules, "for netplan", _netplan_policy))
    if not (of_routes or of_rules):
        return ""
    parts = [_NETPLAN, "network:\n  version: 2\n  ethernets:\n"]
    for dev in dict.fromkeys((*of_routes, *of_rules)):
        # Without quotes, names such as 1e3, on or null wouldn't be strings in YAML.
        parts.append(f'    "{dev}":\n')
        for key, texts in (("routes", of_routes), ("routing-policy", of_rules)):
            if dev in texts:
                parts += [f"      {key}:\n", *texts[dev]]
    return "".join(parts)


def as_networkd(routes: Sequence[Route], rules: Sequence[PlacedRule] = ()) -> str:
    """Render a drop-in for each interface's .network file (systemd 249 or later).

    Args:
        routes: the result of ``resolve``.
        rules: the policy rules. (networkd deletes rules that aren't in its files.)

    Returns:
        The concatenated drop-ins, or an empty string if there are no routes or rules. Each drop-in
        starts with a comment that begins with ``# DEVICE:``. Multipath routes are listed under
        their first hop's interface.

    Raises:
        RouteError: networkd doesn't support some routes, or an interface name isn't safe. The error
            lists these routes, each with the reason and, if there is one, an alternative.
    """
    purpose = "for systemd-networkd"
    sections = _by_device(
        [
            *_each(routes, purpose, _networkd_section),
            *_each_rule(rules, purpose, _networkd_policy),
        ]
    )
    return "\n".join(
        _NETWORKD.format(dev=dev) + "\n".join(texts) for dev, texts in sections.items()
    )


def too_many_for_networkd(routes: Sequence[Route]) -> tuple[str, ...]:
    """Return a warning for each interface that may have more routes than networkd reads."""
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
    """Return the text for each route, with the interface of the route's first hop.

    Raises:
        RouteError: ``write`` rejected some routes, or ``parse_device`` the names of their
            interfaces.
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


def _each_rule(
    rules: Sequence[PlacedRule],
    purpose: str,
    write: Callable[[Rule], str],
) -> list[tuple[str, str]]:
    """Return the text for each rule, with the rule's interface.

    Netplan and networkd may swap rules with the same preference. Only our rules for tables local
    and main share a preference, so the rule for table local gets a preference that is smaller by 1.

    Raises:
        RouteError: ``write`` rejected some rules, or ``parse_device`` the names of their
            interfaces.
    """
    written: list[tuple[str, str]] = []
    refusals: list[Refusal] = []
    for placed in rules:
        rule = placed.rule
        if rule.table == Table.LOCAL:
            rule = attrs.evolve(rule, preference=rule.preference - 1)
        try:
            written.append((parse_device(placed.dev), write(rule)))
        except RouteError as error:
            refusals.append(
                Refusal(f"can't write the rule {rule} {purpose}: {error.message}", error.hint)
            )
        except ValueError as error:
            refusals.append(Refusal(f"can't write the rule {rule} {purpose}: {error}"))
    if refusals:
        raise RouteError.of(refusals)
    return written


def _by_device(written: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for dev, text in written:
        texts.setdefault(dev, []).append(text)
    return texts


def _ip_line(route: Route) -> str:
    return f"ip -{route.family.value} route add {attrs.evolve(route, protocol=PRINTED)}\n"


def _ip_rule(rule: Rule) -> str:
    return f"ip -{_family_of(rule).value} rule add {rule} pref {rule.preference} proto {PRINTED}\n"


def _family_of(rule: Rule) -> Family:
    end = rule.source or rule.destination
    return Family.IPV4 if end is None else Family.of(end)


def _netplan_policy(rule: Rule) -> str:
    if rule.suppress_prefix_length is not None:
        raise RouteError(
            "it has no suppress_prefixlength, which a gateway in keep takes",
            hint="use networkd or ip",
        )
    return "        - " + "\n          ".join(_policy(rule, *_NETPLAN_KEYS)) + "\n"


def _networkd_policy(rule: Rule) -> str:
    rows = ["[RoutingPolicyRule]", *_policy(rule, *_NETWORKD_KEYS)]
    if rule.suppress_prefix_length is not None:
        rows.append(f"SuppressPrefixLength={rule.suppress_prefix_length}")
    return "\n".join(rows) + "\n"


_NETPLAN_KEYS = ("from: ", "to: ", "table: ", "priority: ")
_NETWORKD_KEYS = ("From=", "To=", "Table=", "Priority=")


def _policy(rule: Rule, *keys: str) -> list[str]:
    """Return the lines for a rule's source, destination, table and preference."""
    values = (rule.source, rule.destination, int(rule.table), rule.preference)
    return [f"{key}{value}" for key, value in zip(keys, values, strict=True) if value is not None]


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
    rows += _rest(route, "from: ", "mtu: ", "metric: ", "table: ")
    return "        - " + "\n          ".join(rows) + "\n"


def _networkd_section(route: Route) -> str:
    rows = ["[Route]", f"Destination={route.destination}"]
    if len(route.hops) == 1:
        rows += _networkd_hop(route.hops[0], route.family)
    else:
        rows += map(_networkd_hop_of_many, route.hops)
    rows += _rest(route, "PreferredSource=", "MTUBytes=", "Metric=", "Table=")
    return "\n".join(rows) + "\n"


def _rest(
    route: Route,
    source: str,
    mtu: str,
    metric: str,
    table: str,
) -> list[str]:
    """Return the lines for a route's source, MTU, metric and, except for main, its table."""
    rest = (
        (source, route.source),
        (mtu, route.mtu),
        (metric, route.metric or None),
        (table, None if route.table == Table.MAIN else route.table),
    )
    return [f"{key}{value}" for key, value in rest if value is not None]


def _networkd_hop(hop: NextHop, family: Family) -> list[str]:
    if hop.gateway is None:
        return ["Scope=link"] if family is Family.IPV4 else []
    # Write GatewayOnLink= in any case. On an interface without a static address, networkd's default
    # is "yes", even if DHCP gives it an address.
    return [f"Gateway={hop.gateway}", f"GatewayOnLink={'yes' if hop.onlink else 'no'}"]


def _networkd_hop_of_many(hop: NextHop) -> str:
    if hop.gateway is None or hop.onlink:
        what = "without a gateway" if hop.gateway is None else "with an onlink gateway"
        raise RouteError(
            f"it has no multipath hops {what}",
            hint="name one interface as dev, or use ip",
        )
    return f"MultiPathRoute={hop.gateway}@{hop.dev} {hop.weight}"
