"""Errors for requests that a kernel rejects, and filters for routes and rules to delete."""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable

import attrs

from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.lookups import RuleFailure
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule


class NetlinkError(Exception):
    """Exception raised when the kernel rejects a request. The exception never leaves the backend.

    Args:
        errno: the kernel's errno.
        message: the kernel's extended ACK message, or a description of the errno.
        is_by_kernel: whether the kernel, and not the backend, rejects the request.
    """

    def __init__(self, errno: int, message: str = "", *, is_by_kernel: bool = True) -> None:
        self.errno = errno
        self.is_by_kernel = is_by_kernel
        self.message: str = message or os.strerror(errno)
        super().__init__(self.message)


class Deletable:
    """The existing routes, used to filter a batch of deletions.

    The kernel compares fewer attributes than ``RouteBackend.write`` promises. A metric of 0 matches
    any metric. A hop without a gateway (``dev eth0``) matches a hop through the same device with
    any gateway (fib_nh_match). So a request to delete a route that doesn't exist could delete
    another route. To prevent that, the backend first reads the existing entries. Each entry can be
    deleted only once.

    Args:
        entries: all existing entries that one of the deletions could match.
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

    The kernel deletes the first rule that matches a request (``rule_deleted_for``). So a request to
    delete a rule could delete another rule. To prevent that, the backend first reads the rules.
    Each rule can be deleted only once.

    Args:
        rules: all rules, in evaluation order.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [*rules]

    def take(self, rule: Rule) -> None:
        """Find a rule and mark it as deleted.

        Raises:
            NetlinkError: there is no such rule (ENOENT), or the kernel would delete another one
                (ENOTRECOVERABLE).
        """
        if rule not in self._rules:
            raise NetlinkError(errnos.ENOENT, "no such rule", is_by_kernel=False)
        first = rule_deleted_for(rule, self._rules)
        if first != rule:
            reason = (
                f"the kernel would delete {first} (protocol {rule.protocol}), which comes first"
            )
            raise NetlinkError(errnos.ENOTRECOVERABLE, reason, is_by_kernel=False)
        self._rules.remove(rule)


def rule_failure(rule: Rule, refusal: NetlinkError) -> RuleFailure:
    """Return the failure of a rule that the kernel or the backend has refused."""
    return RuleFailure(rule, refusal.errno, refusal.message, refusal.is_by_kernel)


def rule_deleted_for(request: Rule, rules: Iterable[Rule]) -> Rule | None:
    """Return the rule that the kernel deletes for a request; None if it deletes none (rule_find).

    The kernel deletes the first rule that has all selectors of the request, even if the rule has
    more selectors. The kernel compares neither ``not`` nor the target of ``goto``, and a request
    has no ports.

    Args:
        request: the rule to delete. Protocol 0 stands for any.
        rules: all rules, in evaluation order.
    """
    return next((rule for rule in rules if _has_selectors_of(request, rule)), None)


def _has_selectors_of(request: Rule, rule: Rule) -> bool:
    asked = attrs.asdict(request, recurse=False)
    there = attrs.asdict(rule, recurse=False)
    for fields in (asked, there):
        if fields["mark"] is None:
            fields |= {"mark": 0, "mark_mask": 0}
    return all(asked[name] in (unset, there[name]) for name, unset in _UNSET.items())


# The fields that the kernel compares, each with the value that matches any value. The kernel always
# compares preference, action and table.
_UNSET: dict[str, object] = {
    "preference": None,
    "action": None,
    "table": None,
    "source": None,
    "destination": None,
    "tos": 0,
    "tun_id": 0,
    "mark": 0,
    "mark_mask": 0,
    "iif": None,
    "oif": None,
    "uid_range": None,
    "ip_protocol": 0,
    "suppress_prefix_length": None,
    "suppress_group": None,
    "is_l3mdev": False,
    "protocol": 0,
}


def refuse_unwritable(rule: Rule) -> None:
    """Refuse to add a rule with ports or an unsupported selector, which a ``Rule`` doesn't hold.

    Raises:
        NetlinkError: the rule has ports or an unsupported selector (EOPNOTSUPP).
    """
    if rule.has_ports or rule.has_unknown:
        reason = "its ports or other selectors aren't known here"
        raise NetlinkError(errnos.EOPNOTSUPP, reason, is_by_kernel=False)


def _identity(route: Route) -> tuple[object, ...]:
    """Return the attributes that must match in a deletion, except the first hop's device."""
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
