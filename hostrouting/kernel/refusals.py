"""Errors for requests that a kernel rejects, and filters for deletions of what doesn't exist."""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable

import attrs

from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule


class NetlinkError(Exception):
    """Exception raised when the kernel rejects a request. It never leaves the backend.

    Args:
        errno: the error number.
        message: the kernel's extended ACK message, or a description of the errno.
    """

    def __init__(self, errno: int, message: str = "") -> None:
        self.errno = errno
        self.message: str = message or os.strerror(errno)
        super().__init__(self.message)


class Deletable:
    """The existing routes, used to filter a batch of deletions.

    The kernel compares less than ``RouteBackend.write`` promises: a metric of 0 matches any metric,
    and a device without a gateway matches that device with any gateway (fib_nh_match in
    net/ipv4/fib_semantics.c). A request to delete a route that doesn't exist could therefore remove
    another one. To prevent this, the backend first reads the entries with the destinations to
    delete. Each entry can be deleted only once.

    Args:
        entries: entries from the affected tables.
    """

    def __init__(self, entries: Iterable[Route]) -> None:
        self._devs: dict[tuple[object, ...], list[str | None]] = {}
        for entry in entries:
            self._devs.setdefault(_identity(entry), []).append(_first_dev(entry))

    def take(self, route: Route) -> None:
        """Find a route and mark it as deleted.

        A hop without a device matches any device.

        Raises:
            NetlinkError: there is no such route (ESRCH).
        """
        devs = self._devs.get(_identity(route), [])
        dev = _first_dev(route)
        if not devs or (dev is not None and dev not in devs):
            raise NetlinkError(errnos.ESRCH, "no such route")
        devs.remove(devs[0] if dev is None else dev)


class DeletableRules:
    """The existing rules, used to filter a batch of deletions.

    The kernel deletes the first rule that matches a request, and a request without a source or a
    destination matches rules with any (rule_find in net/core/fib_rules.c).

    Args:
        rules: all rules, in evaluation order.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [*rules]

    def take(self, rule: Rule) -> None:
        """Find a rule that the kernel would delete, and mark it as deleted.

        Raises:
            NetlinkError: there is no such rule (ENOENT), or the kernel would delete another one
                (ENOTRECOVERABLE).
        """
        if rule not in self._rules:
            raise NetlinkError(errnos.ENOENT, "no such rule")
        first = next(other for other in self._rules if _is_deleted_for(rule, other))
        if first != rule:
            raise NetlinkError(errnos.ENOTRECOVERABLE, f"the kernel would delete the rule {first}")
        self._rules.remove(rule)


def _is_deleted_for(rule: Rule, other: Rule) -> bool:
    compared = attrs.evolve(
        rule,
        source=rule.source or other.source,
        destination=rule.destination or other.destination,
    )
    return compared == other


def _identity(route: Route) -> tuple[object, ...]:
    """Return what must match, except the first hop's device, as a tuple that is fast to hash."""
    prefix = numbers(route.destination)
    key = (
        route.table,
        *prefix,
        route.tos,
        route.metric,
        route.type,
        route.protocol,
        route.nexthop_id,
    )
    # A nexthop object determines the hops, so its ID is compared instead of the first hop's
    # gateway.
    return key if route.nexthop_id is not None or not route.hops else (*key, route.hops[0].gateway)


def _first_dev(route: Route) -> str | None:
    return route.hops[0].dev if route.hops and route.nexthop_id is None else None
