"""Change a kernel with commands in the words of ip(8), for tests.

The same commands work on the kernel in memory and on the real one in a throw-away namespace. The
commands are parsed here, and not run by ``ip``, so they need no privileges and no iproute2.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Interface, ip_address
from operator import attrgetter

import attrs

from hostrouting.kernel._ip import UINT32
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import (
    DEFAULT_DESTINATION,
    NextHop,
    Protocol,
    Route,
    RouteType,
    Scope,
    Table,
)
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shown

# The other names that ip has for a word.
_ROUTE_ALIASES = {
    "protocol": "proto",
    "preference": "metric",
    "priority": "metric",
    "prio": "metric",
    "dsfield": "tos",
}
_HOP_WORDS = ("via", "dev", "weight")
_ROUTE_WORDS = (*_HOP_WORDS, "table", "proto", "scope", "src", "metric", "tos", "mtu", "nhid")
# The last two are only in ip's output.
_HOP_FLAGS = ("onlink", "dead", "linkdown")

_RULE_ALIASES = {
    "preference": "pref",
    "priority": "pref",
    "prio": "pref",
    "order": "pref",
    "table": "lookup",
    "protocol": "proto",
    "dsfield": "tos",
    "dev": "iif",
}
_ACTIONS = ("nop", "blackhole", "unreachable", "prohibit")
_RULE_FIELDS = {
    "pref": "preference",
    "not": "is_inverted",
    "from": "source",
    "to": "destination",
    "tos": "tos",
    "fwmark": "mark",
    "iif": "iif",
    "oif": "oif",
    "uidrange": "uid_range",
    "ipproto": "ip_protocol",
    "sport": "has_ports",
    "dport": "has_ports",
    "lookup": "table",
    "goto": "goto",
    "suppress_prefixlength": "suppress_prefix_length",
    "suppress_ifgroup": "suppress_group",
    "proto": "protocol",
    **dict.fromkeys(_ACTIONS, "action"),
}


class IpCommands:
    """The method ``ip`` of a kernel whose links, addresses and rules can be changed."""

    def ip(self: Kernel, commands: str) -> None:
        """Change links, addresses, routes and rules with commands of iproute2, one a line.

        Empty lines, comments (``# …``) and the name of the program are skipped. These commands are
        known::

            link add NAME [address MAC] [down]
            link set NAME up|down|carrier on|carrier off
            link del NAME
            address add A/LENGTH dev NAME [peer A] [metric N] [noprefixroute]
            address del A/LENGTH dev NAME
            route add|replace [TYPE] PREFIX [via A] [dev NAME] [table T] [proto P] [metric N] …
            route del PREFIX [via A] [dev NAME] [table T] [proto P] [metric N] …
            rule add|del [pref N] [not] [from PREFIX] [to PREFIX] [fwmark N] … lookup T

        Unlike a link of ``ip``, a new link is up, has a carrier and is like an Ethernet interface.
        The command therefore has no ``type``.

        Args:
            commands: the commands.

        Raises:
            RouteError: the kernel rejected a command. The commands before it stay.
            ValueError: a command isn't known.
        """
        for line in commands.splitlines():
            run_command(self, line)


def run_command(kernel: Kernel, line: str) -> None:
    """Run one command; see ``IpCommands.ip``."""
    words = line.partition("#")[0].split()
    if words[:1] == ["ip"]:
        del words[0]
    if words[:1] == ["-4"]:
        del words[0]
    if not words:
        return
    run = _command_of(words)
    try:
        run(kernel, words[2:])
    except IndexError:
        raise ValueError(f"ip {' '.join(words)}: words are missing") from None
    except KeyError as error:
        raise ValueError(f"ip {' '.join(words)}: {error} is missing or not known") from None
    except ValueError as error:
        reason = "IPv4 only" if any(map(_is_ipv6, words)) else error
        raise ValueError(f"ip {' '.join(words)}: {reason}") from None
    except RouteError as error:
        raise RouteError(f"ip {' '.join(words)}: {error.message}", errno=error.errno) from error


def _is_ipv6(word: str) -> bool:
    try:
        IPv6Interface(word)
    except ValueError:
        return False
    return ":" in word


def _command_of(words: Sequence[str]) -> Callable[[Kernel, list[str]], None]:
    """Return the function for a command, whose subject may be abbreviated."""
    if words[0] == "-6":
        raise ValueError(f"ip {' '.join(words)}: IPv4 only")
    subject = next((each for each in _COMMANDS if each.startswith(words[0])), "")
    verb = words[1] if len(words) > 1 else "show"
    run = _COMMANDS.get(subject, {}).get(verb)
    if run is None:
        known = ", ".join(f"ip {each} {'|'.join(verbs)}" for each, verbs in _COMMANDS.items())
        raise ValueError(f"ip {' '.join(words)}: not known here; known are {known}")
    return run


# --- links and addresses --------------------------------------------------------------------------


def _link_add(kernel: Kernel, words: list[str]) -> None:
    if "type" in words:
        raise ValueError("types aren't known here: a new link is like an Ethernet interface")
    name, options = _device(words, ("address",), ("up", "down"))
    kernel.add_link(name, up="down" not in options, mac=options.get("address"))


def _link_set(kernel: Kernel, words: list[str]) -> None:
    name, options = _device(words, ("carrier",), ("up", "down"))
    if "up" in options or "down" in options:
        kernel.set_link(name, up="up" in options)
    if "carrier" in options:
        kernel.set_link(name, carrier={"on": True, "off": False}[options["carrier"]])


def _link_del(kernel: Kernel, words: list[str]) -> None:
    name, _ = _device(words, (), ())
    kernel.del_link(name)


def _device(
    words: list[str], known: Iterable[str], flags: Iterable[str]
) -> tuple[str, dict[str, str]]:
    """Return the interface's name, which may follow ``dev`` or ``name``, and the options."""
    if words[0] in ("dev", "name"):
        words = words[1:]
    return words[0], parse_options(words[1:], known, flags)


def _address_add(kernel: Kernel, words: list[str]) -> None:
    options = parse_options(words[1:], ("dev", "peer", "metric"), ("noprefixroute",))
    kernel.add_address(
        options["dev"],
        words[0],
        peer=options.get("peer"),
        metric=int(options.get("metric", "0")),
        prefix_route="noprefixroute" not in options,
    )


def _address_del(kernel: Kernel, words: list[str]) -> None:
    kernel.del_address(parse_options(words[1:], ("dev",))["dev"], words[0])


# --- routes ---------------------------------------------------------------------------------------


def _route_add(kernel: Kernel, words: list[str]) -> None:
    _write(kernel, Write.ADD, parse_route(" ".join(words)))


def _route_replace(kernel: Kernel, words: list[str]) -> None:
    _write(kernel, Write.REPLACE, parse_route(" ".join(words)))


def _route_del(kernel: Kernel, words: list[str]) -> None:
    """Delete the first route with these attributes, as the kernel does for ``ip``."""
    wanted = parse_route(" ".join(words))
    _, _, _, options = split_route(" ".join(words))
    for route in read_routes(kernel, wanted.table):
        if _has_attributes(route, wanted, options):
            _write(kernel, Write.DELETE, route)
            return
    raise RouteError(os.strerror(errnos.ESRCH), errno=errnos.ESRCH)


def _has_attributes(route: Route, wanted: Route, options: Mapping[str, str]) -> bool:
    if (route.destination, route.tos) != (wanted.destination, wanted.tos):
        return False
    if wanted.type not in (RouteType.UNICAST, route.type):
        return False
    attributes = [_ATTRIBUTES[word] for word in options if word in _ATTRIBUTES]
    return all(attribute(route) == attribute(wanted) for attribute in attributes)


def _first_hop(route: Route) -> NextHop:
    return route.hops[0] if route.hops else NextHop()


# By the words that select the route to delete.
_ATTRIBUTES: dict[str, Callable[[Route], object]] = {
    "via": lambda route: _first_hop(route).gateway,
    "dev": lambda route: _first_hop(route).dev,
    "metric": attrgetter("metric"),
    "proto": attrgetter("protocol"),
    "scope": attrgetter("scope"),
    "src": attrgetter("source"),
}


def _write(kernel: Kernel, change: Write, route: Route) -> None:
    for failure in kernel.write(change, [route]):
        raise RouteError(failure.message, errno=failure.errno)


def parse_route(text: str) -> Route:
    """Parse an IPv4 route in the words of ``ip route``, whose usual protocol is boot.

    Raises:
        ValueError: a word isn't known or its value isn't valid.
    """
    kind, destination, hops, options = split_route(text)
    scope = {"scope": number(options["scope"], _Scope)} if "scope" in options else {}
    return Route(
        _network(destination),
        hops,
        kind,
        table=number(options.get("table", "main"), Table),
        protocol=number(options.get("proto", "boot"), Protocol),
        metric=int(options.get("metric", "0")),
        tos=int(options.get("tos", "0"), 0),
        source=IPv4Address(options["src"]) if "src" in options else None,
        mtu=int(options["mtu"]) if "mtu" in options else None,
        nexthop_id=int(options["nhid"]) if "nhid" in options else None,
        **scope,
    )


def split_route(
    text: str, more: Iterable[str] = ()
) -> tuple[RouteType, str, tuple[NextHop, ...], dict[str, str]]:
    """Return the type, destination, next hops and options of a route of either family.

    Args:
        text: the route's words.
        more: the words of options that IPv4 routes don't have.

    Raises:
        ValueError: a word isn't known or its value isn't valid.
    """
    words, *legs = [part.split() for part in text.split("nexthop")]
    is_typed = words[0].upper() in RouteType.__members__
    kind = RouteType[words.pop(0).upper()] if is_typed else RouteType.UNICAST
    destination = words.pop(0)
    options = _hop_options(words, (*_ROUTE_WORDS, *more))
    hops = tuple(_hop(_hop_options(leg, _HOP_WORDS)) for leg in legs)
    hop = _hop(options)
    if not hops and hop != NextHop():
        hops = (hop,)
    return kind, destination, hops, options


def _hop_options(words: list[str], known: Iterable[str]) -> dict[str, str]:
    words = [_ROUTE_ALIASES.get(word, word) for word in words if word not in ("inet", "inet6")]
    return parse_options(words, known, _HOP_FLAGS)


def _hop(options: Mapping[str, str]) -> NextHop:
    return NextHop(
        dev=options.get("dev"),
        gateway=ip_address(options["via"]) if "via" in options else None,
        onlink="onlink" in options,
        weight=int(options.get("weight", "1")),
    )


# --- rules ----------------------------------------------------------------------------------------


def _rule_add(kernel: Kernel, words: list[str]) -> None:
    rule = parse_rule(" ".join(words))
    if rule.preference < 0:
        # fib_default_rule_pref
        rules = kernel.facts().rules
        rule = attrs.evolve(rule, preference=max(0, rules[1].preference - 1) if rules[1:] else 0)
    kernel.add_rule(rule)


def _rule_del(kernel: Kernel, words: list[str]) -> None:
    """Delete the first rule with these attributes, as the kernel does for ``ip``."""
    wanted = parse_rule(" ".join(words))
    fields = [_RULE_FIELDS[word] for word in _rule_options(" ".join(words))]
    for rule in kernel.facts().rules:
        if all(getattr(rule, field) == getattr(wanted, field) for field in fields):
            kernel.del_rule(rule)
            return
    raise RouteError(os.strerror(errnos.ENOENT), errno=errnos.ENOENT)


def _rule_options(text: str) -> dict[str, str]:
    words = [_RULE_ALIASES.get(word, word) for word in text.split()]
    return parse_options(words, _RULE_FIELDS, ("not", *_ACTIONS))


def parse_rule(text: str) -> Rule:
    """Parse an IPv4 policy rule in the words of ``ip rule``, with preference -1 if it has none.

    Raises:
        ValueError: a word isn't known or its value isn't valid.
    """
    options = _rule_options(text)
    action = next((word for word in (*_ACTIONS, "goto") if word in options), "to_table")
    mark, _, mask = options.get("fwmark", "").partition("/")
    first, _, last = options.get("uidrange", "").partition("-")
    return Rule(
        int(options.get("pref", "-1")),
        action=RuleAction[action.upper()],
        table=number(options.get("lookup", "main"), Table),
        goto=_number_or_none(options.get("goto")),
        source=_selector(options.get("from", "all")),
        destination=_selector(options.get("to", "all")),
        tos=int(options.get("tos", "0"), 0),
        mark=_number_or_none(mark),
        mark_mask=int(mask, 0) if mask else UINT32,
        iif=options.get("iif"),
        oif=options.get("oif"),
        uid_range=(int(first), int(last)) if first else None,
        ip_protocol=number(options.get("ipproto", "0"), _IpProtocol),
        has_ports="sport" in options or "dport" in options,
        suppress_group=_number_or_none(options.get("suppress_ifgroup")),
        suppress_prefix_length=_number_or_none(options.get("suppress_prefixlength")),
        protocol=number(options.get("proto", "unspec"), Protocol),
        is_inverted="not" in options,
    )


class _Scope(IntEnum):
    GLOBAL = Scope.UNIVERSE
    SITE = Scope.SITE
    LINK = Scope.LINK
    HOST = Scope.HOST
    NOWHERE = Scope.NOWHERE


class _IpProtocol(IntEnum):
    ICMP = 1
    TCP = 6
    UDP = 17


# --- words ----------------------------------------------------------------------------------------


def parse_options(
    words: Iterable[str], known: Iterable[str], flags: Iterable[str] = ()
) -> dict[str, str]:
    """Return the value of each option; that of a flag is its name.

    Raises:
        ValueError: an option isn't known, or has no value.
    """
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in flags:
            options[word] = word
        elif word not in known:
            raise ValueError(f"{shown(word)} isn't known here; known are {', '.join(known)}")
        else:
            value = next(rest, None)
            if value is None:
                raise ValueError(f"{word} needs a value")
            options[word] = value
    return options


def number(text: str, known: type[IntEnum]) -> int:
    """Parse a number or a name of an enumeration.

    Raises:
        ValueError: the text is neither.
    """
    if text.upper() in known.__members__:
        return known[text.upper()]
    if not text.isdigit():
        names = ", ".join(known.__members__).lower()
        raise ValueError(f"{shown(text)} is neither a number nor one of {names}")
    return int(text)


def _number_or_none(text: str | None) -> int | None:
    return int(text, 0) if text else None


def _network(text: str) -> IPv4Network:
    return DEFAULT_DESTINATION if text == "default" else IPv4Network(text)


def _selector(text: str) -> IPv4Network | None:
    return None if text in ("all", "any", "default") else _network(text)


# ip accepts the beginning of each subject; of two that fit, the first one counts.
_COMMANDS: dict[str, dict[str, Callable[[Kernel, list[str]], None]]] = {
    "link": {"add": _link_add, "set": _link_set, "del": _link_del, "delete": _link_del},
    "address": {"add": _address_add, "del": _address_del, "delete": _address_del},
    "route": {
        "add": _route_add,
        "replace": _route_replace,
        "del": _route_del,
        "delete": _route_del,
    },
    "rule": {"add": _rule_add, "del": _rule_del, "delete": _rule_del},
}
