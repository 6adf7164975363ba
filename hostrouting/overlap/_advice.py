"""Find the packets that are lost if the owner of a route, address or rule follows our advice.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

import attrs

from hostrouting.kernel.model import Model
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.links import Address
from hostrouting.model.routes import Protocol, Route, RouteType, Table
from hostrouting.model.rules import Rule
from hostrouting.overlap._losses import losses, taken_away
from hostrouting.overlap._modelled_host import ModelledHost
from hostrouting.overlap._places import Places
from hostrouting.overlap._state import State
from hostrouting.overlap.proposals import OwnersChange, Unfixable

# At most this many advised changes are modelled for one host, because each needs its own model.
_PROVEN_MAX = 16


def with_proven_advice(before: ModelledHost, unfixable: Iterable[Unfixable]) -> Iterator[Unfixable]:
    """Yield each failure with a clause on the packets that would be lost by following its advice.

    Only the first ``_PROVEN_MAX`` advised changes are modelled. Later failures get no advice.

    Args:
        before: the host before any change.
        unfixable: the failures, of which some have advice.
    """
    left = _PROVEN_MAX
    for each in unfixable:
        change = each.obstacle.change
        if change is None:
            yield each
            continue
        with_loss = None
        if left > 0:
            left -= 1
            with_loss = change._replace(loss=loss_by(before, change, each.ranges))
        yield attrs.evolve(each, obstacle=each.obstacle._replace(change=with_loss))


def loss_by(before: ModelledHost, change: OwnersChange, intended: Iterable[IpNetwork]) -> str:
    """Return a clause on the packets that a change diverts or drops, or an empty string.

    Args:
        before: the host before the change.
        change: the advice to remove routes, remove an address, or add a rule.
        intended: the failing addresses whose packets the change diverts on purpose.
    """
    after = attrs.evolve(before, model=_model_after(before.model, change))
    lines = taken_away(losses(before, after, intended))
    return f", after which {', and '.join(lines)}" if lines else ""


def loss_by_rule(state: State, rule: Rule) -> str:
    """Return a clause on the packets that an added rule loses, or an empty string."""
    before = ModelledHost(state, Places((), state.family), state.model)
    return loss_by(before, OwnersChange("", rule=rule), ())


def _model_after(model: Model, change: OwnersChange) -> Model:
    if change.removed:
        model = model.without(change.removed)
    if change.address is not None:
        model = _without_address(model, change.address)
    if change.rule is not None:
        rules = (*model.known.rules, change.rule)
        model = model.with_rules(sorted(rules, key=attrgetter("preference")))
    return model


def _without_address(model: Model, address: Address) -> Model:
    """Return a model without an address and the routes that the kernel deletes with it.

    When an interface loses its last IPv4 address, the kernel deletes all routes through the
    interface (fib_inetaddr_event). When no interface has the IPv4 address any more, the kernel
    deletes the routes of table main with this src (fib_sync_down_addr).
    """
    addresses = tuple(each for each in model.known.addresses if each != address)
    networks = {each.network for each in addresses if each.dev == address.dev}
    locals_ = {each.local for each in addresses}
    is_ipv4 = model.family is Family.IPV4
    is_last = is_ipv4 and all(each.dev != address.dev for each in addresses)
    is_src_gone = is_ipv4 and address.local not in locals_

    def is_gone(route: Route) -> bool:
        if is_last and address.dev in route.devs:
            return True
        if is_src_gone and route.table == Table.MAIN and route.source == address.local:
            return True
        if route.protocol != Protocol.KERNEL or address.dev not in route.devs:
            return False
        if route.type is RouteType.LOCAL:
            return route.destination[0] == address.local and address.local not in locals_
        return route.destination == address.network and address.network not in networks

    gone = [route for route in model.known.routes if is_gone(route)]
    model = model.without(gone)
    return attrs.evolve(model, known=attrs.evolve(model.known, addresses=addresses))
