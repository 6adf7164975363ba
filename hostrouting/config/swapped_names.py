"""Find interface names in a config that belong to other NICs by now.

Azure doesn't guarantee the order of NICs across reboots, but routes and addresses stay with the
NICs. In this table, the verified uplink was eth0 and is eth1 now, and another NIC is eth0 now. So
some names in a config that was written before the reboot are wrong:

===========================  ==================================  =============  ========
the config has               and                                 this means     write
===========================  ==================================  =============  ========
eth0 in ``uplinks``          ``uplinks`` lacks eth1              the uplink     eth1
eth0 in a CIDR's ``devs``                                        the uplink     eth1
eth1 in a CIDR's ``devs``    its packets leave through eth0      the other NIC  eth0
eth1 in ``keep``                                                 the other NIC  eth0
eth0 as a route's ``dev``    no gateway shows that it's right    the uplink     eth1
eth1 as a route's ``dev``    no gateway shows that it's right    the other NIC  eth0
===========================  ==================================  =============  ========

A gateway in one of the networks that ``dev`` has now shows that ``dev`` is right. If the gateway of
one route isn't in these networks, the ``dev`` of every route is doubted.

If ``uplinks`` is set and lacks eth0, the config was edited after the reboot, and its names are
right. Only the row with the packets applies to such a config.

The boot scripts follow these rules, too.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hostrouting.config.routing import ONLINK, Config, StaticRoute
from hostrouting.model.links import Link, is_like
from hostrouting.model.text import shortened
from hostrouting.model.verified_uplinks import (
    VerifiedUplink,
    find_renamed,
    find_swapped,
    is_port_of,
    master_of,
)

Swap = tuple[VerifiedUplink, str]
"""A verified uplink, and its present name."""

# The most places in one key of the config that a printed line names.
_SHOWN_PLACES = 4


def swapped_uplinks(config: Config, links: Sequence[Link]) -> tuple[Swap, ...]:
    """Return the verified uplinks that ``uplinks`` names only by their former name."""
    return find_swapped(config.verified, links, config.uplinks or ())


def ports_named(config: Config, devs: Iterable[str], links: Sequence[Link]) -> tuple[Swap, ...]:
    """Return the named uplinks, each with its master, if all of them are ports; otherwise none.

    Args:
        config: the config with ``uplinks``.
        devs: the names of the uplinks.
        links: the host's links.
    """
    if config.uplinks is None:
        return ()
    masters = {dev: master_of(dev, links) for dev in devs}
    found = [(VerifiedUplink(dev), name) for dev, name in masters.items() if name is not None]
    return tuple(found) if len(found) == len(masters) else ()


def swapped_devs(
    config: Config,
    links: Sequence[Link],
    failing: Iterable[tuple[tuple[str, ...], tuple[str, ...]]],
) -> tuple[Swap, ...]:
    """Return the verified uplinks whose former or present name is wrong in ``devs``.

    Args:
        config: the config with expected CIDRs and verified uplinks.
        links: the host's links.
        failing: for each CIDR with packets that don't leave through its ``devs``, a pair of
            interface lists: these ``devs``, and where the packets leave instead.
    """
    failing = [*failing]
    given = [each.devs for each in config.route_overlap.expected_cidrs if each.devs is not None]
    swapped: list[Swap] = []
    for uplink, present in find_renamed(config.verified, links):
        # The ``devs`` whose packets leave through the NIC that has the uplink's former name now.
        diverted = _devs_leaving_through(uplink.name, failing)
        means_other = any(_has_only_present(devs, uplink, present) for devs in diverted)
        means_uplink = any(_has_only_former(devs, uplink, present) for devs in given)
        if means_other or (means_uplink and not _is_edited(config, uplink)):
            swapped.append((uplink, present[0]))
    return tuple(swapped)


def _devs_leaving_through(
    dev: str,
    failing: Iterable[tuple[tuple[str, ...], tuple[str, ...]]],
) -> list[tuple[str, ...]]:
    return [devs for devs, leave_through in failing if leave_through == (dev,)]


def swapped_routes(
    config: Config,
    links: Sequence[Link],
    *,
    is_lacking: bool,
) -> tuple[Swap, ...]:
    """Return the verified uplinks whose former or present name in ``staticRoutes`` is wrong.

    Args:
        config: the config with static routes and verified uplinks.
        links: the host's links.
        is_lacking: whether a static route can't be installed because, for example, its gateway
            isn't in a network of its interface.
    """
    static = config.static_routes
    devs = [
        route.dev
        for route in static.routes
        if route.dev is not None and _is_doubted(route, is_lacking=is_lacking)
    ]
    patterns = [*devs, *(keep.dev for keep in static.keep)]
    swapped: list[Swap] = []
    for uplink, present in find_renamed(config.verified, links):
        means_uplink = uplink.name in devs
        means_other = any(_has_only_present((each,), uplink, present) for each in patterns)
        if (means_uplink or means_other) and not _is_edited(config, uplink):
            swapped.append((uplink, present[0]))
    return tuple(swapped)


def _is_edited(config: Config, uplink: VerifiedUplink) -> bool:
    """Return whether ``uplinks`` is set, but lacks an uplink's former name."""
    return config.uplinks is not None and not is_like(uplink.name, config.uplinks)


def _is_doubted(route: StaticRoute, *, is_lacking: bool) -> bool:
    """Return whether no gateway shows that a route's ``dev`` is right."""
    return is_lacking or route.gateway in (None, ONLINK)


def _has_only_former(
    patterns: tuple[str, ...],
    uplink: VerifiedUplink,
    present: Iterable[str],
) -> bool:
    """Return whether patterns match an uplink's former name, but none of its present names."""
    return is_like(uplink.name, patterns) and not any(is_like(name, patterns) for name in present)


def _has_only_present(
    patterns: tuple[str, ...],
    uplink: VerifiedUplink,
    present: Iterable[str],
) -> bool:
    """Return whether patterns match one of an uplink's present names, but not its former name."""
    return not is_like(uplink.name, patterns) and any(is_like(name, patterns) for name in present)


def swap_words(
    swap: Swap,
    config: Config,
    links: Sequence[Link],
    *,
    is_lacking: bool = False,
) -> tuple[str, str]:
    """Return what has happened to a verified uplink, and what to do about the config."""
    uplink, name = swap
    then = "then: hostrouting apply"
    if is_port_of(uplink.name, name, links):
        to_do = f"name {name} in hostRouting.uplinks; {then}"
        return f"{uplink.name} is a port of {name} by now", to_do
    is_reused = any(link.name == uplink.name for link in links)
    mac = "" if uplink.mac is None else f" ({uplink.mac})"
    now = f", and {uplink.name} is another interface now" if is_reused else ""
    by_key = filter(None, _edits(swap, config, is_lacking))
    edits = "; ".join(shortened(each, "; ", _SHOWN_PLACES) for each in by_key)
    other = ", or give the interface its name back"
    if config.uplinks is None:
        setting = f'set hostRouting\'s "uplinks": {json.dumps([name])}'
        other = f"; {setting}, or this alone if the names are right"
    return (
        f"the interface with which the check passed as {uplink.name}{mac} is {name} by now{now}",
        f"{edits}{other}; {then}",
    )


def _edits(swap: Swap, config: Config, is_lacking: bool) -> Iterator[list[str]]:
    """Yield, key by key, the edits that give the uplink and the other NIC their present names.

    After an edit of ``uplinks``, the other keys aren't doubted any more. So no key is left out.
    """
    uplink, name = swap
    uplinks = config.uplinks or ()
    static = config.static_routes
    is_old = _has_only_former(uplinks, uplink, [name])
    yield [f"in hostRouting.uplinks name {name}"] if is_old else []
    of_devs: list[str] = []
    for expected in config.route_overlap.expected_cidrs:
        of_devs += _edit(f"devs of {expected.cidr}", expected.devs or (), swap)
    yield of_devs
    of_routes: list[str] = []
    for route in static.routes:
        if route.dev is not None:
            place = f"dev of the static route to {route.destination}"
            is_doubted = _is_doubted(route, is_lacking=is_lacking or is_old)
            of_routes += _edit(place, (route.dev,), swap, may_mean_uplink=is_doubted)
    yield of_routes
    of_keep: list[str] = []
    for keep in static.keep:
        of_keep += _edit(f"keep, for {keep.dev},", (keep.dev,), swap, may_mean_uplink=False)
    yield of_keep


def _edit(
    place: str,
    patterns: tuple[str, ...],
    swap: Swap,
    *,
    may_mean_uplink: bool = True,
) -> Iterator[str]:
    """Yield the edit of one place in a config, if the patterns there name the wrong interface."""
    uplink, name = swap
    if _has_only_present(patterns, uplink, [name]):
        yield f"in {place} name {uplink.name}"
    elif may_mean_uplink and _has_only_former(patterns, uplink, [name]):
        yield f"in {place} name {name}"
