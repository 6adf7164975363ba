"""Find what the commands of ``fix --format ip`` have added: it goes at the next boot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.selection import Selection
from hostrouting.model.family import Family
from hostrouting.model.routes import PRINTED, Protocol, Route, how_to_delete_printed
from hostrouting.model.rules import Rule, rule_words
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen

# The most rules and routes that a sentence names.
_SHOWN = 4


@frozen
class Printed:
    """The routes and rules of ``fix --format ip`` in a kernel's tables of one address family.

    Args:
        family: the address family.
        rules: the policy rules.
        routes: the routes, in all tables.
    """

    family: Family
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]


def read_printed(backends: Iterable[RouteBackend]) -> tuple[Printed, ...]:
    """Return what ``fix --format ip`` has added, for each family in which it has added anything.

    Raises:
        RouteError: a kernel can't be queried.
    """
    found = (
        Printed(
            backend.family,
            tuple(rule for rule in backend.facts().rules if rule.is_printed),
            tuple(backend.entries(Selection(protocol=PRINTED))),
        )
        for backend in backends
    )
    return tuple(each for each in found if each.rules or each.routes)


def about_printed(printed: Sequence[Printed]) -> str:
    """Return that the next boot lacks what was printed; empty if there is nothing of it."""
    rules = [rule_words(rule) for each in printed for rule in each.rules]
    routes = [
        str(attrs.evolve(route, protocol=Protocol.BOOT))
        for each in printed
        for route in each.routes
    ]
    if not (rules or routes):
        return ""
    shown = shortened([*rules, *routes], ", ", _SHOWN)
    return f"the next boot has none of what hostrouting fix --format ip printed ({shown})"


def printed_hint(
    printed: Iterable[Printed],
    fix: str = "hostrouting fix --in-place CONFIG",
    apply: str = "hostrouting apply",
) -> str:
    """Return how to make what was printed last."""
    deleting = (how_to_delete_printed(each.family) for each in printed)
    return f"to make it last: {' && '.join((fix, *deleting, apply))}"


def printed_sentence(printed: Sequence[Printed]) -> str:
    """Return what ``about_printed`` does, with how to make it last."""
    message = about_printed(printed)
    return f"{message}; {printed_hint(printed)}" if message else ""
