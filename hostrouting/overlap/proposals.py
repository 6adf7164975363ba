"""The proposed fix for a check's failures, and the failures that no proposed route fixes.

A ``Question`` is raised by ``_diversions``, and answered by ``_questions``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from hostrouting.config.routing import ExpectedCidr, Keep, StaticRoute, StaticRoutes, StaticRule
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.jsonable import JsonObject, StrEnum
from hostrouting.model.links import Address
from hostrouting.model.routes import Route, destination_words
from hostrouting.model.rules import HIDES_SELECTORS, Rule
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen

OFFER = "add to hostRouting.staticRoutes.keep"
"""The words that precede the entries in a caution that offers to keep interfaces."""

# A line of text names at most this many CIDRs.
_SHOWN_CIDRS = 4


class AnswerKind(StrEnum):
    """The meaning of an answer: where packets that bypass the uplinks now are to go."""

    NEAR = "near"
    """The packets are for the connected network of an interface that doesn't carry them now."""
    WANTED = "wanted"
    """The packets are meant to leave through the interfaces that carry them now."""
    UNWANTED = "unwanted"
    """The packets are meant to leave through the uplinks."""
    REPLACING = "replacing"
    """The interfaces asked about lead to the cluster, and the uplinks don't."""


class Answer(NamedTuple):
    """An answer to a question, which is a change of the config.

    Args:
        kind: the meaning of the answer.
        uplinks: the uplinks to name; empty if the answer names expected CIDRs.
        cidrs: the expected CIDRs to name, each with the interfaces to expect.
        effect: what a check with this answer proposes, and which packets that fix diverts, in a
            clause. Empty if the check proposes no fix.
    """

    kind: AnswerKind
    uplinks: tuple[str, ...] = ()
    cidrs: tuple[ExpectedCidr, ...] = ()
    effect: str = ""

    def keys(self) -> dict[str, Any]:
        """Return the keys of the config to set."""
        if self.uplinks:
            return {"uplinks": list(self.uplinks)}
        return {"expectedCidrs": [expected.to_mapping() for expected in self.cidrs]}

    def clause(self) -> str:
        """Return the answer, ready to paste."""
        from json import dumps

        if self.uplinks:
            return f'set hostRouting\'s "uplinks": {dumps(self.uplinks)}{self.effect}'
        cidrs = [dumps(expected.to_mapping()) for expected in self.cidrs]
        shown = shortened(cidrs, ", ", _SHOWN_CIDRS)
        return f"expect {shown} instead of the CIDR alone{self.effect}"


class Question(NamedTuple):
    """A question to the user: whether some packets bypass the uplinks on purpose.

    The packets go to expected addresses, and one entry leads them through another interface.

    Args:
        devs: the interfaces that carry the packets now.
        entry: the entry that leads the packets there. None if no entry matches them, or if
            ``is_ours``.
        near: the interface whose connected network contains the packets' destinations, although the
            packets leave through ``devs``. An empty string if there is none.
        is_ours: whether the question is about all static routes that an earlier run has installed.
        answers: the answers, the likeliest first.
        otherwise: advice if no answer helps, and the packets should leave through the uplinks. It
            may be empty.
    """

    devs: tuple[str, ...]
    entry: Route | None = None
    near: str = ""
    is_ours: bool = False
    answers: tuple[Answer, ...] = ()
    otherwise: str = ""

    def clauses(self) -> list[str]:
        """Return a clause for each kind of answer, such as ``if it is wanted, set ...``."""
        replacing = {
            dev
            for answer in self.answers
            for dev in answer.uplinks
            if answer.kind is AnswerKind.REPLACING
        }
        if_ = {
            AnswerKind.NEAR: f"if these addresses belong to the network of {self.near}",
            AnswerKind.WANTED: "if it is wanted",
            AnswerKind.UNWANTED: "if it isn't",
            AnswerKind.REPLACING: f"if only {','.join(sorted(replacing))} leads to the cluster",
        }
        if self.is_ours:
            if_[AnswerKind.WANTED] = "if that change isn't wanted"
            if_[AnswerKind.UNWANTED] = "if it is"
        clauses: dict[AnswerKind, list[str]] = {}
        for answer in self.answers:
            clauses.setdefault(answer.kind, []).append(answer.clause())
        if self.otherwise:
            clauses[AnswerKind.UNWANTED] = [self.otherwise]
        if len(clauses) == 1 and not self.is_ours:
            if_[AnswerKind.UNWANTED] = "if it isn't wanted"
        return [f"{if_[kind]}, {', or '.join(told)}" for kind, told in clauses.items()]


class OwnersChange(NamedTuple):
    """A change of the host that the owner of a route, an address or a rule can make.

    Args:
        words: the change in words, such as ``remove it``.
        removed: the routes that are removed.
        address: the address that is removed, or None.
        rule: the rule that is added, or None.
        loss: a clause on the packets that the change takes away; empty if there are none.
        otherwise: a clause with other advice, or an empty string.
    """

    words: str
    removed: tuple[Route, ...] = ()
    address: Address | None = None
    rule: Rule | None = None
    loss: str = ""
    otherwise: str = ""

    def __str__(self) -> str:
        return f"{self.words}{self.loss}{self.otherwise}"


class Obstacle(NamedTuple):
    """The reason why no route in table main fixes some addresses.

    Args:
        reason: the reason. If the cause isn't a policy rule, it includes how to fix it. With a
            question, it may be empty until ``Questions.answered`` fills it in.
        rule: the policy rule that decides before main; None if the cause isn't a rule.
        is_withheld: whether a route could fix the addresses, but isn't proposed because the traffic
            may be wanted.
        question: the question to the user before a route is proposed, or None.
        change: the change that the owner is advised to make; None if no model can show its effects.
        is_hidden: whether the snapshot may lack selectors of the rule, so that the rule may match
            other packets.
        to_add: clauses with entries that the config needs, too, once the reason is gone.
    """

    reason: str
    rule: Rule | None = None
    is_withheld: bool = False
    question: Question | None = None
    change: OwnersChange | None = None
    is_hidden: bool = False
    to_add: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return the reason with what to do about it."""
        if self.question is not None:
            return "; ".join((self.reason, *self.question.clauses()))
        if self.rule is not None:
            if self.is_hidden:
                return f"{self.reason}; {HIDES_SELECTORS}"
            return f"{self.reason}: change that rule"
        if self.change is not None:
            return f"{self.reason}: {self.change}"
        return "; ".join((self.reason, *self.to_add))


@frozen
class Unfixable(JsonObject):
    """Failing addresses that no proposed route in table main can fix.

    Args:
        ranges: the failing addresses.
        devs: sorted names of the interfaces that packets leave through.
        obstacle: why no proposed route fixes them.
        about: the prefixes to show instead of ``ranges``. These prefixes are fewer, because they
            also include adjacent local and broadcast addresses. Empty if ``ranges`` is to be shown.
    """

    json_names = ("ranges", "devs", "reason", "answers")

    ranges: tuple[IpNetwork, ...]
    devs: tuple[str, ...]
    obstacle: Obstacle
    about: tuple[IpNetwork, ...] = attrs.field(default=(), eq=False)

    @property
    def reason(self) -> str:
        """Return why no proposed entry fixes the addresses, and what to do instead, if known."""
        return self.obstacle.sentence()

    @property
    def answers(self) -> list[dict[str, Any]]:
        """Return the answers to choose from, each as the keys of the config to set."""
        question = self.obstacle.question
        return [] if question is None else [answer.keys() for answer in question.answers]

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the prefixes to show, which are ``about`` or else ``ranges``.

        A single address is shown without its length.
        """
        return tuple(map(destination_words, self.about or self.ranges))


@frozen
class Fix(JsonObject):
    """A fix for all failures found by a check.

    Args:
        routes: the fewest entries that cover the failing addresses without affecting any others.
        rules: the fewest entries of ``staticRoutes.rules`` for the failing addresses about which a
            policy rule decides before table main.
        keep: the entries of ``staticRoutes.keep`` for interfaces whose own addresses the routes
            would cut off from their neighbours.
        unfixable: the failures that these entries don't fix.
        consequences: unrelated traffic that the entries move to another interface, one line each.
            In each line, details may follow after a semicolon.
        hints: what the owners of other interfaces can change instead, one line each.
        unapplied: the config's entries that would fix failures, but that the kernel lacks. Then
            ``routes``, ``rules`` and ``keep`` have only what is needed in addition.
        unlisted: our routes and rules that cause failures, but that the config doesn't list. Then
            ``apply``, which removes them, is the fix.
        would_fail: whether ``apply`` would fail with the config as it is; None if that isn't known.
            If the check passes, one of ``consequences`` says why, and otherwise one of ``hints`` or
            of ``unfixable``. Not included in the JSON.
    """

    json_names = (
        "routes",
        "rules",
        "keep",
        "unfixable",
        "consequences",
        "hints",
        "unapplied",
        "unlisted",
    )

    routes: tuple[StaticRoute, ...] = ()
    rules: tuple[StaticRule, ...] = ()
    keep: tuple[Keep, ...] = ()
    unfixable: tuple[Unfixable, ...] = ()
    consequences: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    unapplied: StaticRoutes | None = None
    unlisted: tuple[str, ...] = ()
    would_fail: bool | None = False

    @property
    def needs_apply(self) -> bool:
        """Return whether ``apply`` fixes failures without a change of the config."""
        return self.unapplied is not None or bool(self.unlisted)

    @property
    def entries(self) -> StaticRoutes:
        """Return what to install, as a section of a config."""
        return StaticRoutes(enabled=True, routes=self.routes, rules=self.rules, keep=self.keep)


@frozen
class HostSettings:
    """Settings of a host that a fix's cautions depend on.

    Args:
        nameservers: the host's DNS servers. A caution names each server whose traffic the fix moves
            to another interface.
        strict_devs: the interfaces with net.ipv4.conf.*.rp_filter = 1. They drop packets whose
            reply would leave through another interface.
        unread: why these settings couldn't be read, or an empty string.
    """

    nameservers: tuple[IpAddress, ...] = ()
    strict_devs: tuple[str, ...] = ()
    unread: str = ""
