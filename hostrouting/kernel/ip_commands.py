"""Change a kernel with commands in the words of ip(8), for tests.

The same commands work on the kernel in memory and on the real one in a throw-away namespace. This
module parses the commands, so they need no iproute2. Each command has the same effect as with
``ip``, or is refused.
"""

from __future__ import annotations

import errno as errnos
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Interface, ip_address
from operator import attrgetter
from typing import TypeVar

import attrs

from hostrouting.kernel._ip import UINT32
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.kernel.refusals import rule_deleted_for
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

Value = TypeVar("Value")

_BYTE = range(256)
_UINT32 = range(UINT32 + 1)

# The word that is used here for each alias that ip accepts.
_ROUTE_ALIASES = {
    "protocol": "proto",
    "preference": "metric",
    "priority": "metric",
    "prio": "metric",
    "dsfield": "tos",
}
_HOP_WORDS = ("via", "dev")
_ROUTE_WORDS = (*_HOP_WORDS, "table", "proto", "scope", "src", "metric", "tos", "mtu", "nhid")
_HOP_FLAGS = ("onlink",)
# For these types, ip's default table is local (iproute_modify).
_LOCAL_TYPES = (RouteType.LOCAL, RouteType.BROADCAST, RouteType.ANYCAST)

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


_IPV4_ONLY = (
    "IPv4 only, apart from a gateway after via inet6; "
    "a NamespaceKernel takes an IPv6 address by add_address(dev, address)"
)


class IpCommands:
    """The method ``ip`` of a kernel whose links, addresses and rules can be changed."""

    def ip(self: Kernel, commands: str) -> None:
        """Change links, addresses, routes and rules with commands of iproute2, one a line.

        Empty lines, comments (``# …``) and the name of the program are skipped. These commands are
        known::

            link add NAME [address MAC] [down]
            link set NAME up|down|carrier on|carrier off|group N
            link del NAME
            address add A/LENGTH dev NAME [metric N] [noprefixroute]
            address add A peer A/LENGTH dev NAME [metric N] [noprefixroute]
            address del A[/LENGTH] [peer A/LENGTH] dev NAME
            route add|replace [TYPE] PREFIX [via A] [dev NAME] [table T] [proto P] [metric N] …
            route del PREFIX [via A] [dev NAME] [table T] [proto P] [metric N] …
            rule add|del [pref N] [not] [from PREFIX] [to PREFIX] [fwmark N] … lookup T

        Unlike a link of ``ip``, a new link is up, has a carrier and is like an Ethernet interface.
        ``link add`` therefore takes no ``type``. Words that ``ip`` would read in an unexpected way,
        such as octal numbers (``metric 010``), are refused.

        Args:
            commands: a text with a command on each line.

        Raises:
            RouteError: the kernel rejected a command. The effects of earlier commands stay.
            TypeError: the commands aren't a text.
            ValueError: a command isn't known.
        """
        if not isinstance(commands, str):
            raise TypeError(f"ip takes a text with one command a line, not {shown(commands)}")
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
    if not words[2:]:
        raise ValueError(f"ip {' '.join(words)}: words are missing")
    if _has_ipv6(words):
        # A route via an IPv6 address, without inet6, would be in the IPv6 table.
        raise ValueError(f"ip {' '.join(words)}: {_IPV4_ONLY}")
    try:
        run(kernel, words[2:])
    except IndexError:
        raise ValueError(f"ip {' '.join(words)}: words are missing") from None
    except KeyError as error:
        raise ValueError(f"ip {' '.join(words)}: {error} is missing or not known") from None
    except ValueError as error:
        raise ValueError(f"ip {' '.join(words)}: {error}") from None
    except RouteError as error:
        raise RouteError(f"ip {' '.join(words)}: {error.message}", errno=error.errno) from error


def _has_ipv6(words: Sequence[str]) -> bool:
    """Return whether a word is an IPv6 address or prefix, except a gateway after ``inet6``."""
    return any(
        before != "inet6" and _is_ipv6(word)
        for before, word in zip(["", *words], words, strict=False)
    )


def _is_ipv6(word: str) -> bool:
    try:
        IPv6Interface(word)
    except ValueError:
        return False
    return ":" in word


def _command_of(words: Sequence[str]) -> Callable[[Kernel, list[str]], None]:
    """Return the function for a command, whose subject may be abbreviated."""
    if words[0] == "-6":
        raise ValueError(f"ip {' '.join(words)}: {_IPV4_ONLY}")
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
        raise ValueError(
            "types aren't known here: a new link is like an Ethernet interface; "
            "for another, call add_link(name, kind=...)"
        )
    name, options = _device(words, ("address",), ("up", "down"))
    mac = options.get("address")
    kernel.add_link(name, up="down" not in options, mac=mac and mac.lower())


def _link_set(kernel: Kernel, words: list[str]) -> None:
    name, options = _device(words, ("carrier", "group"), ("up", "down"))
    if "up" in options or "down" in options:
        kernel.set_link(name, up="up" in options)
    if "carrier" in options:
        kernel.set_link(name, carrier={"on": True, "off": False}[options["carrier"]])
    if "group" in options:
        kernel.set_link(name, group=integer(options["group"]))


def _link_del(kernel: Kernel, words: list[str]) -> None:
    name, _ = _device(words, (), ())
    kernel.del_link(name)


def _device(
    words: list[str], known: Iterable[str], flags: Iterable[str]
) -> tuple[str, dict[str, str]]:
    """Return the interface's name, which may follow ``dev`` or ``name``, and the options."""
    if words[0] in ("dev", "name"):
        words = words[1:]
    options = parse_options(words[1:], known, flags)
    if {"up", "down"} <= options.keys():
        raise ValueError("say either up or down")
    return words[0], options


def _address_add(kernel: Kernel, words: list[str]) -> None:
    options = parse_options(words[1:], ("dev", "peer", "metric"), ("noprefixroute",))
    local, far_end = _ends(words[0], options)
    kernel.add_address(
        options["dev"],
        f"{local.ip}/{far_end.network.prefixlen}",
        peer=str(far_end.ip) if "peer" in options else None,
        metric=integer(options.get("metric", "0")),
        prefix_route="noprefixroute" not in options,
    )


def _address_del(kernel: Kernel, words: list[str]) -> None:
    options = parse_options(words[1:], ("dev", "peer"))
    if "peer" not in options and "/" not in words[0]:
        raise ValueError("the prefix length is missing, and ip would guess which address is meant")
    dev = options["dev"]
    local, far_end = _ends(words[0], options)
    length = far_end.network.prefixlen
    there = [each for each in kernel.facts().addresses if (each.dev, each.local) == (dev, local.ip)]
    first = next((each for each in there if each.prefix_length == length), None)
    # inet_rtm_deladdr
    if first is not None and far_end.ip not in first.network:
        raise RouteError(os.strerror(errnos.EADDRNOTAVAIL), errno=errnos.EADDRNOTAVAIL)
    kernel.del_address(dev, f"{local.ip}/{length}")


def _ends(local: str, options: Mapping[str, str]) -> tuple[IPv4Interface, IPv4Interface]:
    """Return an address and its peer; without a peer, the address twice."""
    address = IPv4Interface(_plain(local))
    return address, IPv4Interface(_plain(options["peer"])) if "peer" in options else address


# --- routes ---------------------------------------------------------------------------------------


def _route_add(kernel: Kernel, words: list[str]) -> None:
    _write(kernel, Write.ADD, parse_route(" ".join(words)))


def _route_replace(kernel: Kernel, words: list[str]) -> None:
    _write(kernel, Write.REPLACE, parse_route(" ".join(words)))


def _route_del(kernel: Kernel, words: list[str]) -> None:
    """Delete the first route with the given attributes, as the kernel does for ``ip``."""
    text = " ".join(words)
    wanted = parse_route(text)
    given = _selectors(words)
    for route in read_routes(kernel, wanted.table):
        if all(_ATTRIBUTES[word](route) == _ATTRIBUTES[word](wanted) for word in given):
            _write(kernel, Write.DELETE, route)
            return
    raise RouteError(os.strerror(errnos.ESRCH), errno=errnos.ESRCH)


def _selectors(words: list[str]) -> set[str]:
    """Return the names of the attributes that select the route to delete (iproute_modify).

    Raises:
        ValueError: a word isn't known.
    """
    kind, _, _, options = split_route(" ".join(words))
    unknown = [word for word in (*words, *options) if word in ("nexthop", "onlink", "mtu", "nhid")]
    if unknown:
        raise ValueError(f"{unknown[0]} isn't known here: it can't select the route to delete")
    selectors = {"destination", "tos", *options} - {"table"}
    if _is_type(words[0]):
        selectors.add("type")
    if kind in (*_LOCAL_TYPES, RouteType.MULTICAST):
        selectors.add("scope")
    return selectors - {word for word in options if options[word] in _ANY.get(word, ())}


# The values with which an option matches any route.
_ANY = {"metric": ("0",), "proto": ("0", "unspec"), "scope": ("255", "nowhere")}


def _first_hop(route: Route) -> NextHop:
    return route.hops[0] if route.hops else NextHop()


_ATTRIBUTES: dict[str, Callable[[Route], object]] = {
    "type": attrgetter("type"),
    "destination": attrgetter("destination"),
    "tos": attrgetter("tos"),
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
    """Parse an IPv4 route in the words of ``ip route``. The default protocol is boot, as with ip.

    Raises:
        ValueError: a word isn't known or its value isn't valid.
    """
    kind, destination, hops, options = split_route(text)
    usual_table = Table.LOCAL if kind in _LOCAL_TYPES else Table.MAIN
    route = Route(
        _network(destination),
        hops,
        kind,
        table=_table(options.get("table", str(usual_table.value))),
        protocol=number(options.get("proto", "boot"), Protocol, _BYTE),
        metric=integer(options.get("metric", "0")),
        tos=_tos(options.get("tos", "0")),
        source=_parsed(options, "src", IPv4Address),
        mtu=_parsed(options, "mtu", integer),
        nexthop_id=_parsed(options, "nhid", integer),
    )
    if "scope" in options:
        return attrs.evolve(route, scope=number(options["scope"], _Scope, _BYTE))
    # After the word nexthop, ip sets scope global, even if there is only one hop.
    is_global = kind is RouteType.UNICAST and "nexthop" in text.split()
    return attrs.evolve(route, scope=Scope.UNIVERSE) if is_global else route


def split_route(
    text: str, more: Iterable[str] = ()
) -> tuple[RouteType, str, tuple[NextHop, ...], dict[str, str]]:
    """Return the type, destination, next hops and options of a route of either family.

    Args:
        text: the route in ip's words, without the command.
        more: the words of options that IPv4 routes don't have.

    Raises:
        ValueError: a word isn't known or its value isn't valid.
    """
    words, *legs = [part.split() for part in text.split("nexthop")]
    kind = RouteType[words.pop(0).upper()] if _is_type(words[0]) else RouteType.UNICAST
    destination = words.pop(0)
    options = _hop_options(words, (*_ROUTE_WORDS, *more))
    hop = _hop(options)
    if not legs:
        return kind, destination, () if hop == NextHop() else (hop,), options
    if hop != NextHop():
        raise ValueError("via, dev and onlink belong after nexthop here")
    hops = tuple(_hop(_hop_options(leg, (*_HOP_WORDS, "weight"))) for leg in legs)
    return kind, destination, hops, options


def _is_type(word: str) -> bool:
    return word.upper() in RouteType.__members__


def _hop_options(words: list[str], known: Iterable[str]) -> dict[str, str]:
    words = [_ROUTE_ALIASES.get(word, word) for word in words if word not in ("inet", "inet6")]
    return parse_options(words, known, _HOP_FLAGS)


def _hop(options: Mapping[str, str]) -> NextHop:
    return NextHop(
        dev=options.get("dev"),
        gateway=_parsed(options, "via", ip_address),
        onlink="onlink" in options,
        weight=integer(options.get("weight", "1"), range(1, 257)),
    )


# --- rules ----------------------------------------------------------------------------------------


def _rule_add(kernel: Kernel, words: list[str]) -> None:
    _refuse_ports(words)
    rule = parse_rule(" ".join(words))
    if rule.preference < 0:
        # fib_default_rule_pref
        second = kernel.facts().rules[1:2]
        preference = max(0, second[0].preference - 1) if second else 0
        rule = attrs.evolve(rule, preference=preference)
    kernel.add_rule(rule)


def _rule_del(kernel: Kernel, words: list[str]) -> None:
    """Delete the first rule with the given attributes, as the kernel does for ``ip``."""
    _refuse_ports(words)
    wanted = parse_rule(" ".join(words))
    given = {_RULE_FIELDS[word] for word in _rule_options(" ".join(words))}
    if "goto" in given:
        given.add("action")
    for rule in kernel.facts().rules:
        if _is_selected(rule, wanted, given):
            kernel.del_rule(rule)
            return
    raise RouteError(os.strerror(errnos.ENOENT), errno=errnos.ENOENT)


def _is_selected(rule: Rule, wanted: Rule, given: Container[str]) -> bool:
    """Return whether ``ip rule del`` with the ``given`` attributes selects a rule (rule_find)."""
    if "table" in given and not rule.has_table:
        return False
    if "has_ports" in given and not rule.has_ports:
        return False
    compared_anyway = ("preference", "action", "table")
    free = {name: getattr(rule, name) for name in compared_anyway if name not in given}
    return rule_deleted_for(attrs.evolve(wanted, **free), [rule]) is not None


def _refuse_ports(words: list[str]) -> None:
    """Raise a ``ValueError`` for ports except ``dport 443``; see ``NamespaceKernel.add_rule``."""
    options = _rule_options(" ".join(words))
    if "sport" in options or options.get("dport", "443") != "443":
        raise ValueError("of sport and dport, only dport 443 is known here")


def _rule_options(text: str) -> dict[str, str]:
    words = [_RULE_ALIASES.get(word, word) for word in text.split()]
    options = parse_options(words, _RULE_FIELDS, ("not", *_ACTIONS))
    actions = [word for word in (*_ACTIONS, "goto", "lookup") if word in options]
    if len(actions) > 1:
        raise ValueError(f"say either {' or '.join(actions)}")
    return options


def parse_rule(text: str) -> Rule:
    """Parse an IPv4 policy rule in the words of ``ip rule``. By default, its preference is -1.

    Raises:
        ValueError: a word isn't known or its value isn't valid.
    """
    options = _rule_options(text)
    action = next((word for word in (*_ACTIONS, "goto") if word in options), "to_table")
    mark, _, mask = options.get("fwmark", "").partition("/")
    return Rule(
        integer(options["pref"]) if "pref" in options else -1,
        action=RuleAction[action.upper()],
        table=_table(options.get("lookup", "main")),
        goto=_parsed(options, "goto", integer),
        source=_selector(options.get("from", "all")),
        destination=_selector(options.get("to", "all")),
        tos=_tos(options.get("tos", "0")),
        mark=integer(mark) if mark else None,
        mark_mask=integer(mask) if mask else UINT32,
        iif=options.get("iif"),
        oif=options.get("oif"),
        uid_range=_parsed(options, "uidrange", _uid_range),
        ip_protocol=number(options.get("ipproto", "0"), _IpProtocol, _BYTE),
        has_ports="sport" in options or "dport" in options,
        suppress_group=_parsed(options, "suppress_ifgroup", integer),
        suppress_prefix_length=_parsed(options, "suppress_prefixlength", integer),
        protocol=number(options.get("proto", "unspec"), Protocol, _BYTE),
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
    """Return the value of each option. The value of a flag is its name.

    Raises:
        ValueError: an option isn't known, or has no value.
    """
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in options:
            raise ValueError(f"{word} is repeated")
        if word in flags:
            options[word] = word
        elif word not in known:
            names = ", ".join((*known, *flags))
            raise ValueError(f"{shown(word)} isn't known here; known are {names}")
        else:
            value = next(rest, None)
            if value is None:
                raise ValueError(f"{word} needs a value")
            options[word] = value
    return options


def _parsed(options: Mapping[str, str], word: str, parse: Callable[[str], Value]) -> Value | None:
    """Return the value of an option, or None if the command doesn't have the option."""
    return parse(options[word]) if word in options else None


def integer(text: str, allowed: range = _UINT32) -> int:
    """Parse a decimal or hexadecimal number (0x...), as ip does.

    Raises:
        ValueError: the text isn't a number, is octal, or isn't allowed.
    """
    if re.fullmatch("0[0-9]+", text):
        raise ValueError(f"{text} would be an octal number: write it without the 0 in front")
    if not re.fullmatch("(?i:0x[0-9a-f]+)|[0-9]+", text):
        raise ValueError(f"{shown(text)} isn't a number")
    value = int(text, 0)
    if value not in allowed:
        raise ValueError(f"{text} isn't between {allowed[0]} and {allowed[-1]}")
    return value


def number(text: str, known: type[IntEnum], allowed: range = _UINT32) -> int:
    """Parse a number or a name of an enumeration.

    Raises:
        ValueError: the text is neither a number nor a known name.
    """
    if text.upper() in known.__members__:
        return known[text.upper()]
    if not text[:1].isdigit():
        names = ", ".join(known.__members__).lower()
        raise ValueError(f"{shown(text)} is neither a number nor one of {names}")
    return integer(text, allowed)


def _table(text: str) -> int:
    return number(text, Table, range(1, UINT32 + 1))


def _tos(text: str) -> int:
    """Parse a TOS value, which ip reads as hexadecimal even without 0x (rtnl_dsfield_a2n)."""
    return integer(f"0x{text.removeprefix('0x')}", _BYTE)


def _uid_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return integer(first), integer(last)


def _network(text: str) -> IPv4Network:
    return DEFAULT_DESTINATION if text == "default" else IPv4Network(_plain(text))


def _plain(prefix: str) -> str:
    """Check the length of a prefix, and return the prefix or address unchanged.

    Raises:
        ValueError: the prefix length is a mask, or an octal number.
    """
    _, slash, length = prefix.partition("/")
    if slash:
        integer(length)
    return prefix


def _selector(text: str) -> IPv4Network | None:
    network = None if text in ("all", "any", "default") else _network(text)
    return network if network and network.prefixlen else None


# ip accepts abbreviated subjects. If two subjects fit (``r``), the first one counts.
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
