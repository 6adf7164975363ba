"""Policy routing: the rules and side tables that a config's ``rules`` and ``keep`` stand for.

A rule of the config makes table main decide about a CIDR before any later policy rule. It stands
for two rules of the kernel: the first looks up table local, so that the host's own addresses stay
its own even where another program has moved the rule for table local behind ours; the second looks
up table main.

A kept interface has a side table with its connected networks and its gateway, and rules that look
it up for packets from the interface's addresses. With a gateway there are three rules an address:
the side table without its default route, then table main without its default route, because this
host's own pods are there, then the side table's gateway.

This module does no I/O.
"""

from __future__ import annotations

import attrs

from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule


@attrs.frozen
class PolicyRouting:
    """The rules of the kernel, and the routes in side tables, that a config stands for.

    Args:
        rules: the rules, in the order in which they are added.
        routes: the routes in side tables.
        notes: a sentence for each kept interface or address that is left out.
        pending: a phrase for each kept interface that has no address yet, or is down.
    """

    rules: tuple[Rule, ...] = ()
    routes: tuple[Route, ...] = ()
    notes: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
