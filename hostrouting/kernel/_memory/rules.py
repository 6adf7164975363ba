"""net/core/fib_rules.c and net/ipv4/fib_rules.c: policy rules, and by them the table that is asked."""

from __future__ import annotations

import errno as errnos
from typing import TYPE_CHECKING

import attrs

from hostrouting.kernel._memory.device import LOOPBACK, MASKS, RefusedError
from hostrouting.kernel._memory.net import Answer, Flow, Found, Net
from hostrouting.kernel._memory.trie import fib_table_lookup
from hostrouting.model.routes import Table
from hostrouting.model.rules import Rule, RuleAction

if TYPE_CHECKING:
    from ipaddress import IPv4Network

__all__ = ["fib_delrule", "fib_lookup", "fib_newrule"]

_ANY_MARK = 0xFFFFFFFF
_ECN = 0x03
_LAST_UID = 0xFFFFFFFE
# IPTOS_TOS_MASK: "IPv4 currently doesn't handle high order DSCP bits correctly".
_HIGH_DSCP = 0xFF & ~0x1E

_ERROR_OF_ACTION = {
    RuleAction.BLACKHOLE: errnos.EINVAL,
    RuleAction.UNREACHABLE: errnos.ENETUNREACH,
    RuleAction.PROHIBIT: errnos.EACCES,
}


def fib_lookup(net: Net, flow: Flow) -> Answer:
    """The entry that all rules and tables together give, or the errno."""
    if not net.has_custom_rules:
        answer = fib_table_lookup(net, Table.MAIN, flow)
        if answer == errnos.EAGAIN:
            answer = fib_table_lookup(net, Table.DEFAULT, flow)
        return errnos.ENETUNREACH if answer == errnos.EAGAIN else answer
    return _fib_rules_lookup(net, flow)


def _fib_rules_lookup(net: Net, flow: Flow) -> Answer:
    position = 0
    while position < len(net.rules):
        rule = net.rules[position]
        position += 1
        if not _fib_rule_match(rule, flow):
            continue
        if rule.action is RuleAction.GOTO:
            # The target may be gone; then the rule does nothing.
            position = next((there for there, each in enumerate(net.rules) if each.preference == rule.goto), position)
        elif rule.action is not RuleAction.NOP:
            answer = _fib4_rule_action(net, rule, flow)
            if answer != errnos.EAGAIN and not _fib4_rule_suppress(rule, answer):
                return answer
    return errnos.ENETUNREACH


def _fib4_rule_action(net: Net, rule: Rule, flow: Flow) -> Answer:
    if rule.action is RuleAction.TO_TABLE:
        return fib_table_lookup(net, rule.table, flow)
    return _ERROR_OF_ACTION[rule.action]


def _fib4_rule_suppress(rule: Rule, answer: Answer) -> bool:
    if not isinstance(answer, Found):
        return False
    shortest = rule.suppress_prefix_length
    if shortest is not None and answer.alias.destination.prefixlen <= shortest:
        return True
    # Every device is in group 0.
    return rule.suppress_group == 0


def _fib_rule_match(rule: Rule, flow: Flow) -> bool:
    return _selects(rule, flow) is not rule.is_inverted


def _selects(rule: Rule, flow: Flow) -> bool:
    """Whether the selectors fit a flow without mark, tos and ports, of uid 0, that comes in by lo."""
    return not (
        rule.iif not in (None, LOOPBACK)
        or (rule.oif is not None and (flow.oif is None or flow.oif.name != rule.oif))
        or (rule.mark is not None and rule.mark & rule.mark_mask)
        or rule.is_l3mdev
        or (rule.uid_range is not None and rule.uid_range[0] > 0)
        or rule.tos
        or rule.has_ports
        or rule.has_unknown
        or rule.ip_protocol not in (0, flow.ip_protocol)
        or not _holds(rule.source, flow.source)
        or not _holds(rule.destination, flow.destination)
    )


def _holds(network: IPv4Network | None, address: int) -> bool:
    return network is None or not (address ^ int(network.network_address)) & MASKS[network.prefixlen]


def fib_newrule(net: Net, rule: Rule) -> None:
    """Add a rule behind those of its preference.

    Raises:
        RefusedError: EINVAL, EEXIST.
    """
    rule = _fib_nl2rule(rule)
    if any(_rule_exists(each, rule) for each in net.rules):
        raise RefusedError(errnos.EEXIST, "File exists")
    if rule.tos & (_ECN | _HIGH_DSCP):
        raise RefusedError(errnos.EINVAL, "Invalid tos")
    net.has_custom_rules = True
    behind = sum(each.preference <= rule.preference for each in net.rules)
    net.rules.insert(behind, rule)
    net.changes += 1


def fib_delrule(net: Net, rule: Rule) -> None:
    """Delete the first rule that fits; what the given one doesn't select by is any.

    Raises:
        RefusedError: EINVAL, ENOENT.
    """
    rule = _fib_nl2rule(rule)
    for position, each in enumerate(net.rules):
        if _rule_find(each, rule):
            net.has_custom_rules = True
            del net.rules[position]
            net.changes += 1
            return
    raise RefusedError(errnos.ENOENT, "No such file or directory")


def _fib_nl2rule(rule: Rule) -> Rule:
    """A rule as it will be shown: selectors that select nothing left out.

    Raises:
        RefusedError: EINVAL.
    """
    if rule.goto is not None and rule.action is not RuleAction.GOTO:
        raise RefusedError(errnos.EINVAL, "Unexpected goto")
    if rule.action is RuleAction.GOTO and rule.goto is None:
        raise RefusedError(errnos.EINVAL, "Missing goto target for action goto")
    if rule.goto is not None and rule.goto <= rule.preference:
        raise RefusedError(errnos.EINVAL, "Backward goto not supported")
    if rule.uid_range is not None and not rule.uid_range[0] <= rule.uid_range[1] <= _LAST_UID:
        raise RefusedError(errnos.EINVAL, "Invalid uid range")
    has_table = rule.action is RuleAction.TO_TABLE and not rule.is_l3mdev
    has_mark = rule.mark is not None and (rule.mark or rule.mark_mask)
    return attrs.evolve(
        rule,
        table=rule.table if has_table else Table.MAIN,
        source=rule.source if rule.source is not None and rule.source.prefixlen else None,
        destination=rule.destination if rule.destination is not None and rule.destination.prefixlen else None,
        mark=rule.mark if has_mark else None,
        mark_mask=rule.mark_mask if has_mark else _ANY_MARK,
    )


def _plain(rule: Rule) -> tuple[object, ...]:
    """What rule_exists compares outright: neither ``invert`` nor the target of a goto."""
    return (
        rule.action,
        rule.table,
        rule.preference,
        rule.iif,
        rule.oif,
        rule.mark or 0,
        0 if rule.mark is None else rule.mark_mask,
        rule.suppress_group,
        rule.suppress_prefix_length,
        rule.is_l3mdev,
        rule.uid_range,
        rule.ip_protocol,
        rule.protocol,
        rule.has_ports,
    )


def _rule_exists(there: Rule, rule: Rule) -> bool:
    return _plain(there) == _plain(rule) and _fib4_rule_compare(there, rule)


def _rule_find(there: Rule, rule: Rule) -> bool:
    has_table = rule.action is RuleAction.TO_TABLE and not rule.is_l3mdev
    return (
        there.action is rule.action
        and (not has_table or there.table == rule.table)
        and there.preference == rule.preference
        and rule.iif in (None, there.iif)
        and rule.oif in (None, there.oif)
        and (not rule.mark or there.mark == rule.mark)
        and (rule.mark is None or not rule.mark_mask or (there.mark is not None and there.mark_mask == rule.mark_mask))
        and rule.suppress_group in (None, there.suppress_group)
        and rule.suppress_prefix_length in (None, there.suppress_prefix_length)
        and (not rule.is_l3mdev or there.is_l3mdev)
        and rule.uid_range in (None, there.uid_range)
        and rule.ip_protocol in (0, there.ip_protocol)
        and rule.protocol in (0, there.protocol)
        and (not rule.has_ports or there.has_ports)
        and _fib4_rule_compare(there, rule)
    )


def _fib4_rule_compare(there: Rule, rule: Rule) -> bool:
    """Whether tos and prefixes fit; a rule without one takes any for the same, even in rule_exists."""
    return (
        rule.tos in (0, there.tos)
        and rule.source in (None, there.source)
        and rule.destination in (None, there.destination)
    )
