"""Find interface names in a config that belong to other NICs by now.

Azure doesn't guarantee the order of NICs across reboots, but routes and addresses stay with the
NICs. For example, the verified uplink was eth0 and is eth1 now, while another NIC is eth0. In a
config from before the reboot, eth0 means the uplink, and eth1 the other NIC. In a config that has
been edited since, each name means the interface that has it now. The two kinds of configs are told
apart as follows:

- A config whose ``uplinks`` contains eth0 hasn't been edited. A config whose ``uplinks`` is set
  without eth0 has been edited.
- ``devs`` with eth1 means the other NIC if packets to the CIDR leave through eth0.
- If ``uplinks`` isn't set, ``devs`` with eth0 means the uplink, and ``keep`` with eth1 means the
  other NIC. ``dev`` of a static route means the interface from before the reboot, unless the
  route's gateway is in a network of the interface that has the name now.

The boot scripts follow these rules, too.

This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hostrouting.config.routing import ONLINK, Config
from hostrouting.model.links import Link, is_like
from hostrouting.model.text import shortened
from hostrouting.model.verified_uplinks import (
    VerifiedUplink,
    find_renamed,
    find_swapped,
    is_port_of,
)

Swap = tuple[VerifiedUplink, str]
"""A verified uplink, and its present name."""

# The most places that a printed line names.
_SHOWN_PLACES = 4


def swapped_uplinks(config: Config, links: Sequence[Link]) -> tuple[Swap, ...]:
    """Return the verified uplinks of which ``uplinks`` contains only the former name."""
    return find_swapped(config.verified, links, config.uplinks or ())


def swapped_devs(
    config: Config,
    links: Sequence[Link],
    failing: Iterable[tuple[tuple[str, ...], tuple[str, ...]]],
) -> tuple[Swap, ...]:
    """Return the verified uplinks whose former or present name in ``devs`` means another NIC.

    Args:
        config: the config.
        links: the host's links.
        failing: for each CIDR with packets that don't leave through its ``devs``, a pair of these
            ``devs`` and the interfaces through which the packets leave.
    """
    failing = [*failing]
    given = [each.devs for each in config.route_overlap.expected_cidrs if each.devs is not None]
    found: list[Swap] = []
    for was, names in find_renamed(config.verified, links):
        means_other = any(
            devs == (was.name,) and _means_other(patterns, was, names) for patterns, devs in failing
        )
        means_uplink = not _is_edited(config, was) and any(
            _means_uplink(patterns, was, names) for patterns in given
        )
        if means_other or means_uplink:
            found.append((was, names[0]))
    return tuple(found)


def swapped_routes(
    config: Config,
    links: Sequence[Link],
    *,
    is_lacking: bool,
) -> tuple[Swap, ...]:
    """Return the verified uplinks whose former or present name in ``staticRoutes`` is wrong.

    Args:
        config: the config.
        links: the host's links.
        is_lacking: whether a static route can't be installed because, for example, its gateway
            isn't in a network of its interface.
    """
    static = config.static_routes
    devs = [
        route.dev
        for route in static.routes
        if route.dev is not None and (is_lacking or route.gateway in (None, ONLINK))
    ]
    patterns = [(dev,) for dev in (*devs, *(keep.dev for keep in static.keep))]
    return tuple(
        (was, names[0])
        for was, names in find_renamed(config.verified, links)
        if not _is_edited(config, was)
        if was.name in devs or any(_means_other(each, was, names) for each in patterns)
    )


def _is_edited(config: Config, was: VerifiedUplink) -> bool:
    """Return whether ``uplinks`` lacks an uplink's former name, because the config was edited."""
    return config.uplinks is not None and not is_like(was.name, config.uplinks)


def _means_uplink(patterns: tuple[str, ...], was: VerifiedUplink, names: Iterable[str]) -> bool:
    """Return whether patterns match an uplink's former name, but none of its present names."""
    return is_like(was.name, patterns) and not any(is_like(name, patterns) for name in names)


def _means_other(patterns: tuple[str, ...], was: VerifiedUplink, names: Iterable[str]) -> bool:
    """Return whether patterns match one of an uplink's present names, but not its former name."""
    return not is_like(was.name, patterns) and any(is_like(name, patterns) for name in names)


def swap_words(
    swap: Swap,
    config: Config,
    links: Sequence[Link],
    *,
    is_lacking: bool = False,
) -> tuple[str, str]:
    """Return what has happened to a verified uplink, and what to do about the config."""
    was, name = swap
    then = "then: hostrouting apply"
    if is_port_of(was.name, name, links):
        to_do = f"name {name} in hostRouting.uplinks; {then}"
        return f"{was.name} is a port of {name} by now", to_do
    is_reused = any(link.name == was.name for link in links)
    mac = "" if was.mac is None else f" ({was.mac})"
    now = f", and {was.name} is another interface now" if is_reused else ""
    edits = shortened([*_edits(swap, config, is_lacking)], "; ", _SHOWN_PLACES)
    other = ", or give the interface its name back"
    if config.uplinks is None:
        setting = f'set hostRouting\'s "uplinks": {json.dumps([name])}'
        other = f"; {setting}, or this alone if the names are right"
    return (
        f"the interface with which the check passed as {was.name}{mac} is {name} by now{now}",
        f"{edits}{other}; {then}",
    )


def _edits(swap: Swap, config: Config, is_lacking: bool) -> Iterator[str]:
    was, name = swap
    uplinks = config.uplinks or ()
    is_unedited = is_like(was.name, uplinks) and not is_like(name, uplinks)
    if is_unedited:
        yield f"in hostRouting.uplinks name {name}"
    for place, patterns, may_mean_uplink in _places(config, is_lacking or is_unedited):
        if _means_other(patterns, was, [name]):
            yield f"in {place} name {was.name}"
        elif may_mean_uplink and _means_uplink(patterns, was, [name]):
            yield f"in {place} name {name}"


def _places(config: Config, is_lacking: bool) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield each part of the config that names interfaces.

    Each item consists of a phrase for the part, the part's patterns, and whether the patterns may
    mean an uplink.
    """
    for expected in config.route_overlap.expected_cidrs:
        if expected.devs is not None:
            yield f"devs of {expected.cidr}", expected.devs, True
    for route in config.static_routes.routes:
        if route.dev is not None:
            is_lost = is_lacking or route.gateway in (None, ONLINK)
            yield f"dev of the static route to {route.destination}", (route.dev,), is_lost
    for keep in config.static_routes.keep:
        yield f"keep, for {keep.dev},", (keep.dev,), False
