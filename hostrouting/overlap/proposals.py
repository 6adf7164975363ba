"""The proposed fix for a check's failures, and what no proposed route fixes."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from hostrouting.config.routing import StaticRoute
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.jsonable import JsonObject
from hostrouting.model.routes import NextHop, Table, destination_words
from hostrouting.model.rules import Rule, RuleAction


class Obstacle(NamedTuple):
    """The reason why no route in table main can fix some addresses.

    Args:
        reason: the reason, including how to fix it unless the cause is a policy rule.
        rule: the policy rule that takes precedence, or None if the cause isn't a rule.
        next_hops: the default route's next hops, to use in a route in the rule's table.
        family: the rule's family.
        is_policy: whether a route could fix the addresses, but isn't proposed because the traffic may be wanted.
    """

    reason: str
    rule: Rule | None = None
    next_hops: tuple[NextHop, ...] = ()
    family: Family = Family.IPV4
    is_policy: bool = False

    def sentence(self, cidr: str) -> str:
        """Return the reason and alternative commands that make a CIDR bypass the policy rule.

        Args:
            cidr: the CIDR, or a placeholder for it.
        """
        rule, family = self.rule, self.family
        if rule is None:
            return self.reason
        from shlex import quote

        commands = []
        if rule.action is RuleAction.TO_TABLE and rule.table not in (Table.MAIN, Table.LOCAL):
            named = [attrs.evolve(hop, dev=quote(hop.dev or "")) for hop in self.next_hops]
            hops = [hop.words(family) + (" onlink" if hop.onlink else "") for hop in named]
            next_hops = hops[0] if len(hops) == 1 else " ".join(f"nexthop {hop}" for hop in hops)
            # The table may already contain this CIDR. For IPv6, the kernel refuses a second route with the same metric,
            # and prefers our metric to the usual 1024. For IPv4, the usual metric is 0, and the first route wins.
            verb, metric = ("add", f" metric {family.usual_metric}") if family is Family.IPV6 else ("prepend", "")
            commands.append(f"{family.ip} route {verb} {cidr} table {rule.table} {next_hops}{metric}")
        if rule.preference:
            commands.append(f"{family.ip} rule add to {cidr} lookup main pref {rule.preference - 1}")
        how = f"{', or: '.join(commands)}; then check again" if commands else "change that rule"
        return f"{self.reason}: {how}"


@attrs.frozen
class Unfixable(JsonObject):
    """Failing addresses that no proposed route in table main can fix.

    Args:
        ranges: the failing addresses.
        devs: sorted names of the interfaces that packets leave through.
        obstacle: the reason.
        about: a shorter list of prefixes that also includes adjacent local and broadcast addresses, or empty to use
            ``ranges``.
    """

    json_names = ("ranges", "devs", "reason")

    ranges: tuple[IpNetwork, ...]
    devs: tuple[str, ...]
    obstacle: Obstacle
    about: tuple[IpNetwork, ...] = attrs.field(default=(), eq=False)

    @property
    def reason(self) -> str:
        """Return the reason and how to fix it.

        With several prefixes, the commands contain the placeholder ``CIDR``.
        """
        return self.obstacle.sentence(self.parts[0] if len(self.parts) == 1 else "CIDR")

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the fewest prefixes to display, omitting the length of a single address."""
        return tuple(map(destination_words, self.about or self.ranges))


@attrs.frozen
class Fix(JsonObject):
    """A fix for all failures found by a check.

    Args:
        routes: the fewest entries that cover the failing addresses without affecting any others.
        unfixable: the failures that these entries don't fix.
        consequences: unrelated traffic that the entries move to another interface, one line each.
    """

    routes: tuple[StaticRoute, ...] = ()
    unfixable: tuple[Unfixable, ...] = ()
    consequences: tuple[str, ...] = ()
