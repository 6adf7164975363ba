"""Scenarios in ip(8) syntax, which run on any implementation of ``Kernel``.

A scenario has one command per line. After ``->`` comes the expected result: the name of an errno,
or an answer. A command without one has to succeed::

    link add NAME [down]          link del NAME            link up|down NAME       cable in|out NAME
    addr add A/LEN dev D [peer P] [metric N] [noprefixroute]
    addr del A/LEN dev D
    rule add|del PREF [not] [from P] [to P] [fwmark N[/N]] [iif D] [oif D] [uidrange A-B]
                 [ipproto N] [ports] [tos N] [suppress N] [suppress_group N] [proto P]
                 lookup T | goto PREF | nop | blackhole | unreachable | prohibit
    route add|replace|del ROUTE   in the output format of ip-route(8)
    get ADDRESS -> ROUTE | ERRNO
    has ROUTE                     a table contains exactly this line
    lacks PREFIX                  no table has a route to this prefix
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, ip_address
from pathlib import Path

import pytest
from node import lines

from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule, RuleAction


class Surprise(Exception):
    """A command with an unexpected result."""


def skip_without_other_users() -> None:
    """Skip a test that needs a second user ID, because a user namespace created without root has
    only one.
    """
    if "4294967295" not in Path("/proc/self/uid_map").read_text():
        pytest.skip("root of a user namespace with one user can't name another")


def play(kernel: Kernel, scenario: str) -> None:
    """Run each command of a scenario.

    Raises:
        Surprise: a command had a different result; the message includes the table's routes.
    """
    for line in lines(scenario):
        command, _, expected = map(str.strip, line.partition("->"))
        outcome = _outcome(kernel, command)
        if outcome != expected:
            table = "\n  ".join(map(str, read_routes(kernel)))
            raise Surprise(
                f"{command}\n  expected: {expected or 'success'}\n"
                f"  got: {outcome or 'success'}\n\n  {table}"
            )


def _outcome(kernel: Kernel, command: str) -> str:
    subject, *words = command.split()
    try:
        return _COMMANDS[subject](kernel, words)
    except RouteError as error:
        if error.errno is None:
            raise
        return _errno_name(error.errno)


def _errno_name(number: int) -> str:
    return errnos.errorcode[number]


def _link(kernel: Kernel, words: list[str]) -> str:
    verb, name, *rest = words
    if verb == "add":
        kernel.add_link(name, up="down" not in rest)
    elif verb == "del":
        kernel.del_link(name)
    else:
        kernel.set_link(name, up={"up": True, "down": False}[verb])
    return ""


def _cable(kernel: Kernel, words: list[str]) -> str:
    kernel.set_link(words[1], carrier={"in": True, "out": False}[words[0]])
    return ""


def _addr(kernel: Kernel, words: list[str]) -> str:
    verb, address, *rest = words
    options = _options(rest, flags=("noprefixroute",))
    if verb == "add":
        kernel.add_address(
            options["dev"],
            address,
            peer=options.get("peer"),
            metric=int(options.get("metric", "0")),
            prefix_route="noprefixroute" not in options,
        )
    else:
        kernel.del_address(options["dev"], address)
    return ""


def _options(words: list[str], flags: tuple[str, ...] = ()) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        options[word] = word if word in flags else next(rest)
    return options


def _rule(kernel: Kernel, words: list[str]) -> str:
    verb, *rest = words
    {"add": kernel.add_rule, "del": kernel.del_rule}[verb](rule(" ".join(rest)))
    return ""


def rule(text: str) -> Rule:
    """Parse a rule."""
    preference, *words = text.split()
    flags = ("not", "ports", "nop", "blackhole", "unreachable", "prohibit")
    options = _options(words, flags)
    action = next((word for word in (*flags[2:], "goto") if word in options), "to_table")
    uids = options.get("uidrange")
    mark, _, mask = options.get("fwmark", "").partition("/")
    return Rule(
        int(preference),
        action=RuleAction[action.upper()],
        table=number(options.get("lookup", "main"), Table),
        goto=int(options["goto"]) if "goto" in options else None,
        source=_network(options["from"]) if "from" in options else None,
        destination=_network(options["to"]) if "to" in options else None,
        tos=int(options.get("tos", "0"), 0),
        mark=int(mark, 0) if mark else None,
        mark_mask=int(mask, 0) if mask else 0xFFFFFFFF,
        iif=options.get("iif"),
        oif=options.get("oif"),
        uid_range=(int(uids.split("-")[0]), int(uids.split("-")[1])) if uids else None,
        ip_protocol=int(options.get("ipproto", "0")),
        has_ports="ports" in options,
        suppress_group=int(options["suppress_group"]) if "suppress_group" in options else None,
        protocol=number(options.get("proto", "0"), Protocol),
        suppress_prefix_length=int(options["suppress"]) if "suppress" in options else None,
        is_inverted="not" in options,
    )


def _route(kernel: Kernel, words: list[str]) -> str:
    verb, *rest = words
    change = Write.DELETE if verb == "del" else Write(verb)
    failures = kernel.write(change, [route(" ".join(rest))])
    return _errno_name(failures[0].errno) if failures else ""


def _network(text: str) -> IPv4Network:
    return IPv4Network("0.0.0.0/0" if text == "default" else text)


def number(text: str, known: type[IntEnum]) -> int:
    """Parse a number or a name of an enumeration."""
    return int(text) if text.isdigit() else known[text.upper()]


def route(text: str) -> Route:
    """Parse an IPv4 route in the output format of ip-route(8)."""
    kind, destination, hops, options = parsed(text)
    return Route(
        _network(destination),
        hops,
        kind,
        table=number(options.get("table", "main"), Table),
        protocol=number(options.get("proto", "hostrouting"), Protocol),
        metric=int(options.get("metric", "0")),
        tos=int(options.get("tos", "0"), 0),
        source=IPv4Address(options["src"]) if "src" in options else None,
        mtu=int(options["mtu"]) if "mtu" in options else None,
        nexthop_id=int(options["nhid"]) if "nhid" in options else None,
        **({"scope": number(options["scope"], Scope)} if "scope" in options else {}),
    )


def parsed(text: str) -> tuple[RouteType, str, tuple[NextHop, ...], dict[str, str]]:
    """Return the type, destination, next hops and options of a route of either family."""
    words, *legs = [part.split() for part in text.split("nexthop")]
    is_typed = words[0].upper() in RouteType.__members__
    kind = RouteType[words.pop(0).upper()] if is_typed else RouteType.UNICAST
    destination = words.pop(0)
    hop, options = _hop(words)
    return (
        kind,
        destination,
        tuple(_hop(leg)[0] for leg in legs) or ((hop,) if hop != NextHop() else ()),
        options,
    )


def _hop(words: list[str]) -> tuple[NextHop, dict[str, str]]:
    options = _options(
        [word for word in words if word != "inet6"], flags=("onlink", "dead", "linkdown")
    )
    hop = NextHop(
        dev=options.get("dev"),
        gateway=ip_address(options["via"]) if "via" in options else None,
        onlink="onlink" in options,
        weight=int(options.get("weight", "1")),
    )
    return hop, options


def _get(kernel: Kernel, words: list[str]) -> str:
    (answer,) = kernel.lookup([IPv4Address(words[0])])
    return str(answer.route) if answer.errno is None else _errno_name(answer.errno)


def _has(kernel: Kernel, words: list[str]) -> str:
    line = " ".join(words)
    return "" if line in map(str, read_routes(kernel)) else "no such line"


def _lacks(kernel: Kernel, words: list[str]) -> str:
    return next(
        (str(there) for there in read_routes(kernel) if there.destination == _network(words[0])), ""
    )


_COMMANDS: dict[str, Callable[[Kernel, list[str]], str]] = {
    "link": _link,
    "cable": _cable,
    "addr": _addr,
    "rule": _rule,
    "route": _route,
    "get": _get,
    "has": _has,
    "lacks": _lacks,
}
