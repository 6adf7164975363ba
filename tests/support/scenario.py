"""Scenarios in the words of ``ip``, which run on any implementation of ``Kernel``.

A scenario has one command per line. After ``->`` comes the expected result: the name of an errno,
or an answer. A command without one has to succeed. Besides the commands of ``Kernel.ip``, these are
known::

    route add|replace|del ROUTE   exactly this route, with protocol hostrouting unless given
    get ADDRESS -> ROUTE | ERRNO
    has ROUTE                     a table contains exactly this line
    lacks PREFIX                  no table has a route to this prefix
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import attrs
import pytest
from node import lines

from hostrouting.kernel.ip_commands import parse_route, run_command
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Protocol, Route


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
        if subject in _COMMANDS:
            return _COMMANDS[subject](kernel, words)
        run_command(kernel, command)
    except RouteError as error:
        if error.errno is None:
            raise
        return _errno_name(error.errno)
    return ""


def _errno_name(number: int) -> str:
    return errnos.errorcode[number]


def _route(kernel: Kernel, words: list[str]) -> str:
    verb, *rest = words
    change = Write.DELETE if verb == "del" else Write(verb)
    failures = kernel.write(change, [route(" ".join(rest))])
    return _errno_name(failures[0].errno) if failures else ""


def route(text: str) -> Route:
    """Parse an IPv4 route in the output format of ip-route(8), with our protocol unless given."""
    parsed = parse_route(text)
    is_ours = " proto " not in text
    return attrs.evolve(parsed, protocol=Protocol.HOSTROUTING) if is_ours else parsed


def _get(kernel: Kernel, words: list[str]) -> str:
    (answer,) = kernel.lookup([IPv4Address(words[0])])
    return str(answer.route) if answer.errno is None else _errno_name(answer.errno)


def _has(kernel: Kernel, words: list[str]) -> str:
    line = " ".join(words)
    return "" if line in map(str, read_routes(kernel)) else "no such line"


def _lacks(kernel: Kernel, words: list[str]) -> str:
    return next(
        (str(there) for there in read_routes(kernel) if there.destination == IPv4Network(words[0])),
        "",
    )


_COMMANDS: dict[str, Callable[[Kernel, list[str]], str]] = {
    "route": _route,
    "get": _get,
    "has": _has,
    "lacks": _lacks,
}
