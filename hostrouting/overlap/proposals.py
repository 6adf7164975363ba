"""The proposed fix for a check's failures, and what no proposed route fixes."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from hostrouting.config.routing import ExpectedCidr, StaticRoute
from hostrouting.model.family import Family, IpAddress, IpNetwork
from hostrouting.model.jsonable import JsonObject
from hostrouting.model.routes import NextHop, Table, destination_words
from hostrouting.model.rules import Rule, RuleAction
from hostrouting.model.text import shortened

# A limit for human-readable lines.
_SHOWN_CIDRS = 4

_MAIN_AND_LOCAL = (Table.MAIN, Table.LOCAL)


class Question(NamedTuple):
    """A question to the user: whether some packets bypass the uplinks on purpose.

    These are packets to expected addresses that leave through another interface. Each answer is a
    change of the config.

    Args:
        devs: the interfaces that carry the addresses now.
        wanted: the uplinks to name if this is on purpose for the whole node.
        cidrs: the expected CIDRs, each with the interfaces to name if this is on purpose for these
            CIDRs only. Empty if such names would end an exemption in one of the CIDRs.
        unwanted: the uplinks to name if this isn't on purpose. After that, a fix is proposed.
    """

    devs: tuple[str, ...]
    wanted: tuple[str, ...] = ()
    cidrs: tuple[ExpectedCidr, ...] = ()
    unwanted: tuple[str, ...] = ()

    def answers(self) -> list[dict[str, Any]]:
        """Return the answers as keys to set: ``wanted``, then any ``cidrs``, then ``unwanted``."""
        cidrs = [expected.to_mapping() for expected in self.cidrs]
        of_cidrs = [{"expectedCidrs": cidrs}] if cidrs else []
        return [{"uplinks": list(self.wanted)}, *of_cidrs, {"uplinks": list(self.unwanted)}]

    def sentence(self) -> str:
        """Return the answers, ready to paste."""
        from json import dumps

        shown = shortened(
            [dumps(expected.to_mapping()) for expected in self.cidrs],
            ", ",
            _SHOWN_CIDRS,
        )
        replace = f", or expect {shown} instead of the CIDR alone" if shown else ""
        wanted = f'if it is wanted, set hostRouting\'s "uplinks": {dumps(self.wanted)}{replace}'
        unwanted = (
            f'if it isn\'t, set "uplinks": {dumps(self.unwanted)},'
            " and hostrouting fix proposes routes"
        )
        return f"{wanted}; {unwanted}"


class Obstacle(NamedTuple):
    """The reason why no route in table main fixes some addresses.

    Args:
        reason: the reason, including how to fix it unless the cause is a policy rule. With a
            question, it may be empty until ``Questions.completed`` fills it in.
        rule: the policy rule that takes precedence, or None if the cause isn't a rule.
        next_hops: the next hops through the expected interface, to use in a route in the rule's
            table.
        family: the rule's family.
        is_policy: whether a route could fix the addresses, but isn't proposed because the traffic
            may be wanted.
        question: what to ask the user before a route is proposed, or None if nothing is asked.
    """

    reason: str
    rule: Rule | None = None
    next_hops: tuple[NextHop, ...] = ()
    family: Family = Family.IPV4
    is_policy: bool = False
    question: Question | None = None

    def sentence(self, cidr: str) -> str:
        """Return the reason with answers, or with commands for a CIDR to bypass the policy rule.

        Args:
            cidr: the CIDR, or a placeholder for it.
        """
        if self.question is not None:
            return f"{self.reason}: {self.question.sentence()}"
        if self.rule is None:
            return self.reason
        commands = self._commands(self.rule, cidr)
        how = f"{', or: '.join(commands)}; then check again" if commands else "change that rule"
        return f"{self.reason}: {how}"

    def _commands(self, rule: Rule, cidr: str) -> list[str]:
        """Return commands that add a route to the rule's table, or a rule before it."""
        ip = self.family.ip
        commands: list[str] = []
        has_own_table = rule.action is RuleAction.TO_TABLE and rule.table not in _MAIN_AND_LOCAL
        if has_own_table and self.next_hops:
            # The table may already contain this CIDR. For IPv6, the kernel refuses a second route
            # with the same metric, and prefers our metric to the usual 1024. For IPv4, the usual
            # metric is 0, and the first route wins.
            verb = "prepend"
            metric = ""
            if self.family is Family.IPV6:
                verb = "add"
                metric = f" metric {self.family.usual_metric}"
            route = f"{cidr} table {rule.table} {self._next_hops_in_words()}{metric}"
            commands.append(f"{ip} route {verb} {route}")
        if rule.preference:
            commands.append(f"{ip} rule add to {cidr} lookup main pref {rule.preference - 1}")
        return commands

    def _next_hops_in_words(self) -> str:
        from shlex import quote

        hops: list[str] = []
        for hop in self.next_hops:
            named = attrs.evolve(hop, dev=quote(hop.dev or ""))
            hops.append(named.words(self.family) + (" onlink" if hop.onlink else ""))
        return hops[0] if len(hops) == 1 else " ".join(f"nexthop {hop}" for hop in hops)


@attrs.frozen
class Unfixable(JsonObject):
    """Failing addresses that no proposed route in table main can fix.

    Args:
        ranges: the failing addresses.
        devs: sorted names of the interfaces that packets leave through.
        obstacle: the reason.
        about: the prefixes to show instead of ``ranges``. They are fewer, because they also include
            adjacent local and broadcast addresses. Empty if ``ranges`` is to be shown.
    """

    json_names = ("ranges", "devs", "reason", "answers")

    ranges: tuple[IpNetwork, ...]
    devs: tuple[str, ...]
    obstacle: Obstacle
    about: tuple[IpNetwork, ...] = attrs.field(default=(), eq=False)

    @property
    def reason(self) -> str:
        """Return the reason and how to fix it.

        If several prefixes are shown (``parts``), the commands contain the placeholder ``CIDR``.
        """
        return self.obstacle.sentence(self.parts[0] if len(self.parts) == 1 else "CIDR")

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return ``Question.answers`` to choose from, or an empty list without a question."""
        return [] if self.obstacle.question is None else self.obstacle.question.answers()

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the prefixes to show, which are ``about`` or else ``ranges``.

        A single address is shown without its length.
        """
        return tuple(map(destination_words, self.about or self.ranges))


@attrs.frozen
class Fix(JsonObject):
    """A fix for all failures found by a check.

    Args:
        routes: the fewest entries that cover the failing addresses without affecting any others.
        unfixable: the failures that these entries don't fix.
        consequences: unrelated traffic that the entries move to another interface, one line each.
        hints: what the owners of other interfaces can change instead, one line each.
    """

    routes: tuple[StaticRoute, ...] = ()
    unfixable: tuple[Unfixable, ...] = ()
    consequences: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


@attrs.frozen
class HostSettings:
    """Settings of a host that a fix's cautions depend on.

    Args:
        nameservers: its DNS servers. The cautions list those whose traffic the fix moves to another
            interface.
        strict_devs: the interfaces with net.ipv4.conf.*.rp_filter = 1, which drop packets if the
            reply would leave through another interface.
        unread: why these settings couldn't be read, or an empty string.
    """

    nameservers: tuple[IpAddress, ...] = ()
    strict_devs: tuple[str, ...] = ()
    unread: str = ""
