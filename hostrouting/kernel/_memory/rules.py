"""Add and delete policy rules like net/core/fib_rules.c and net/ipv4/fib_rules.c."""

from __future__ import annotations

import errno as errnos

import attrs

from hostrouting.kernel._memory.net import Net
from hostrouting.kernel.refusals import NetlinkError
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule, RuleAction

_ECN = 0x03
_LAST_UID = 0xFFFFFFFE
# IPTOS_TOS_MASK: "IPv4 currently doesn't handle high order DSCP bits correctly".
_HIGH_DSCP = 0xFF & ~0x1E

# This rule has the default value for each selector, which matches any packet.
_ANYTHING = Rule(0, protocol=0)
_IPV4_SELECTORS = ("tos", "source", "destination")
_SELECTORS = (
    *_IPV4_SELECTORS,
    *("iif", "oif", "uid_range", "ip_protocol", "has_ports", "tun_id", "is_l3mdev", "protocol"),
    *("suppress_group", "suppress_prefix_length"),
)


def fib_newrule(net: Net, rule: Rule) -> None:
    """Add a rule after existing rules with the same preference.

    Raises:
        NetlinkError: EINVAL, EEXIST.
    """
    rule = _fib_nl2rule(rule)
    if any(_rule_exists(each, rule) for each in net.rules):
        raise NetlinkError(errnos.EEXIST)
    if rule.tos & (_ECN | _HIGH_DSCP):
        raise NetlinkError(errnos.EINVAL, "Invalid tos")
    net.is_merged = False
    net.rules.insert(sum(each.preference <= rule.preference for each in net.rules), rule)
    net.changes += 1


def fib_delrule(net: Net, rule: Rule) -> None:
    """Delete the first rule that matches.

    Selectors missing from ``rule`` act as wildcards.

    Raises:
        NetlinkError: EINVAL, ENOENT.
    """
    rule = _fib_nl2rule(rule)
    found = next((each for each in net.rules if _rule_find(each, rule)), None)
    if found is None:
        raise NetlinkError(errnos.ENOENT)
    net.is_merged = False
    net.rules.remove(found)
    net.changes += 1


def _fib_nl2rule(rule: Rule) -> Rule:
    """Validate a rule and return it as shown in dumps, without no-op selectors.

    Raises:
        NetlinkError: EINVAL.
    """
    if rule.goto is not None and rule.action is not RuleAction.GOTO:
        raise NetlinkError(errnos.EINVAL, "Unexpected goto")
    if rule.action is RuleAction.GOTO and rule.goto is None:
        raise NetlinkError(errnos.EINVAL, "Missing goto target for action goto")
    if rule.goto is not None and rule.goto <= rule.preference:
        raise NetlinkError(errnos.EINVAL, "Backward goto not supported")
    if rule.uid_range is not None and not rule.uid_range[0] <= rule.uid_range[1] <= _LAST_UID:
        raise NetlinkError(errnos.EINVAL, "Invalid uid range")
    has_mark = rule.mark is not None and (rule.mark or rule.mark_mask)
    return attrs.evolve(
        rule,
        table=rule.table if rule.has_table else Table.MAIN,
        source=rule.source if rule.source is not None and rule.source.prefixlen else None,
        destination=rule.destination if rule.destination is not None and rule.destination.prefixlen else None,
        mark=rule.mark if has_mark else None,
        mark_mask=rule.mark_mask if has_mark else _ANYTHING.mark_mask,
    )


def _rule_exists(there: Rule, rule: Rule) -> bool:
    """Return whether a rule exists. Like the kernel, ignore ``invert`` and goto targets."""
    uncompared = {name: getattr(there, name) for name in (*_IPV4_SELECTORS, "is_inverted", "goto")}
    return attrs.evolve(rule, **uncompared) == there and _selects_no_other(rule, there, _IPV4_SELECTORS)


def _rule_find(there: Rule, rule: Rule) -> bool:
    return (
        (there.action, there.preference) == (rule.action, rule.preference)
        and (not rule.has_table or there.table == rule.table)
        and (not rule.mark or there.mark == rule.mark)
        and (rule.mark is None or not rule.mark_mask or (there.mark is not None and there.mark_mask == rule.mark_mask))
        and _selects_no_other(rule, there, _SELECTORS)
    )


def _selects_no_other(rule: Rule, there: Rule, selectors: tuple[str, ...]) -> bool:
    return all(getattr(rule, name) in (getattr(_ANYTHING, name), getattr(there, name)) for name in selectors)
