"""The proposed fix for a check's failures, and what no proposed route fixes."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from hostrouting.config.routing import ExpectedCidr, Keep, StaticRoute, StaticRoutes, StaticRule
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.jsonable import JsonObject
from hostrouting.model.routes import destination_words
from hostrouting.model.rules import Rule
from hostrouting.model.text import shortened

# A limit for human-readable lines.
_SHOWN_CIDRS = 4


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
        is_policy: whether a route could fix the addresses, but isn't proposed because the traffic
            may be wanted.
        question: what to ask the user before a route is proposed, or None if nothing is asked.
    """

    reason: str
    rule: Rule | None = None
    is_policy: bool = False
    question: Question | None = None

    def sentence(self) -> str:
        """Return the reason with what to do about it."""
        if self.question is not None:
            return f"{self.reason}: {self.question.sentence()}"
        return self.reason if self.rule is None else f"{self.reason}: change that rule"


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
        """Return the reason and how to fix it."""
        return self.obstacle.sentence()

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
        rules: the fewest CIDRs about which table main must decide, where a policy rule decides
            before it.
        keep: the interfaces whose own addresses the routes would cut off from their neighbours.
        unfixable: the failures that these entries don't fix.
        consequences: unrelated traffic that the entries move to another interface, one line each.
        hints: what the owners of other interfaces can change instead, one line each.
    """

    routes: tuple[StaticRoute, ...] = ()
    rules: tuple[StaticRule, ...] = ()
    keep: tuple[Keep, ...] = ()
    unfixable: tuple[Unfixable, ...] = ()
    consequences: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def entries(self) -> StaticRoutes:
        """Return what to install, as a section of a config."""
        return StaticRoutes(enabled=True, routes=self.routes, rules=self.rules, keep=self.keep)


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
