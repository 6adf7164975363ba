"""Find what the commands of ``fix --format ip`` have added: it goes at the next boot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from hostrouting.config.routing import StaticRoutes
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.selection import Selection
from hostrouting.model.family import Family
from hostrouting.model.links import is_like
from hostrouting.model.routes import (
    PRINTED,
    Protocol,
    Route,
    Table,
    how_to_delete_printed,
)
from hostrouting.model.rules import Rule, rule_words
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen

# No static routes, rules or kept interfaces.
NOTHING = StaticRoutes()

BESIDE = (
    "what hostrouting fix --format ip printed is still there beside CONFIG's, "
    "and doesn't follow a gateway"
)

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


def about_printed(printed: Sequence[Printed], installed: StaticRoutes = NOTHING) -> str:
    """Return why what was printed can't stay as it is; empty if there is nothing of it.

    Args:
        printed: what ``read_printed`` has found.
        installed: what CONFIG lists and is installed, so that the next boot has it.
    """
    if not printed:
        return ""
    if is_listed(printed, installed):
        return BESIDE
    rules = [rule_words(rule) for each in printed for rule in each.rules]
    routes = [
        str(attrs.evolve(route, protocol=Protocol.BOOT))
        for each in printed
        for route in each.routes
    ]
    shown = shortened([*rules, *routes], ", ", _SHOWN)
    return f"the next boot has none of what hostrouting fix --format ip printed ({shown})"


def how_to_delete_all(printed: Iterable[Printed]) -> str:
    """Return the commands that delete what was printed, in each family that has any of it."""
    return " && ".join(how_to_delete_printed(each.family) for each in printed)


def is_listed(printed: Iterable[Printed], static: StaticRoutes) -> bool:
    """Return whether static routes, rules and kept interfaces do what was printed."""
    destinations = {route.destination for route in static.routes}
    ruled = {rule.to for rule in static.rules}
    kept = tuple(entry.dev for entry in static.keep)

    def has_rule(rule: Rule) -> bool:
        return rule.destination in ruled if rule.source is None else bool(kept)

    def has_route(route: Route) -> bool:
        if route.table == Table.MAIN:
            return route.destination in destinations
        return all(is_like(dev, kept) for dev in route.devs)

    return all(
        all(map(has_rule, each.rules)) and all(map(has_route, each.routes)) for each in printed
    )
