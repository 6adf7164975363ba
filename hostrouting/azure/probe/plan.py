"""Pure: which device, whether the node has IPv6, and what has to change; nothing of anybody else's ever does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.azure.probe.ruleset import PROBE_SOURCE, REWRITTEN_SOURCE
from hostrouting.config.schema import fields_in_json
from hostrouting.model.changes import Change, Changes
from hostrouting.model.links import Link
from hostrouting.model.parsing import parse_device
from hostrouting.model.routes import Protocol


@attrs.frozen
class Evidence:
    """Whether a node has IPv6, and by what that is known.

    Args:
        has_ipv6: whether.
        sentence: why, without a full stop.
        missing: what may still come that would prove it, in words; None: nothing is waited for.
    """

    has_ipv6: bool
    sentence: str
    missing: str | None = None


# The kernel takes 0 for 1024 (IP6_RT_PRIO_USER).
_BEST_METRIC = 1


@attrs.frozen
class PinPlan:
    """What has to change among the routes to the rewritten address, in the order in which it is done.

    Args:
        add: ours, if it isn't there.
        remove: ours that lead elsewhere, or are there twice; one of the same metric goes as the other comes.
        unchanged: the one that leads the answers out: ours, or somebody else's that does the same.
    """

    add: tuple[Pin, ...] = ()
    remove: tuple[Pin, ...] = ()
    unchanged: tuple[Pin, ...] = ()

    @property
    def changes(self) -> Changes:
        """What it changes."""
        return Changes((*(Change(pin, "added") for pin in self.add), *(Change(pin, "removed") for pin in self.remove)))


@attrs.frozen
class ProbeReport:
    """What has to change, or was changed, so that probes are rewritten.

    Args:
        device: by which probes come in; None: it isn't known.
        evidence: why the node is taken to have IPv6, or not.
        skipped_because: why there is nothing to do; None: there is, or all is as wanted.
        missing: what has to come first, in words; then nothing else is planned.
        rules_before: what is in force; None: nothing.
        rules_after: what is wanted to be; None: nothing.
        pins: the routes.
        problem: why probes aren't rewritten though they should be; what was there before still is. Where the rules
            are required this is an error instead. Of a removal: why rules may be in force that nobody sees.
        boot: the files and units that change.
    """

    device: str | None = None
    evidence: str = ""
    skipped_because: str | None = None
    missing: str | None = None
    rules_before: str | None = None
    rules_after: str | None = None
    pins: PinPlan = attrs.field(factory=PinPlan)
    problem: str | None = None
    boot: Changes = attrs.field(factory=Changes)

    @property
    def has_new_rules(self) -> bool:
        """Whether the rules in force aren't those wanted."""
        return self.rules_before != self.rules_after

    @property
    def changes(self) -> Changes:
        """What it changes but for the rules."""
        return self.pins.changes | self.boot

    @property
    def changed(self) -> bool:
        """Whether it changes anything: rules, routes, or what is installed for the next boot."""
        return self.has_new_rules or bool(self.changes)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON; rules as nft(8) lists them, each route as ``ip -6 route show`` prints it."""
        rules = {"differ": self.has_new_rules, "before": self.rules_before, "after": self.rules_after}
        done = self.changes.to_json() | {"changed": self.changed} | fields_in_json(self.pins, "unchanged")
        why = fields_in_json(self, "device", "evidence", "skipped_because", "missing", "problem")
        return {"schema": 1} | done | why | {"rules": rules}


# --- the device -----------------------------------------------------------------------------------------------------


def choose_device(candidates: Sequence[str], links: Iterable[Link]) -> tuple[str | None, str | None]:
    """The device by which probes come in and answers have to go out.

    It is the first that is no port: what goes out by the port of a bridge or bond never arrives. The others get no
    rules: answers of the host itself to probes that come in there would leave by this one, and be lost.

    Args:
        candidates: the preferred ones first.
        links: all of the node.

    Returns:
        The device, None if it isn't known yet; and what is missing in words, None if it is there and up.

    Raises:
        LoadBalancerProbeError: they are all ports, so there will never be one; or no script should hold its name.
    """
    if not candidates:
        return None, "a default route, whose device probes come in by"
    there = {link.name: link for link in links}
    name = next((name for name in candidates if _master(name, there) is None), None)
    if name is None:
        master = _master(candidates[0], there)
        raise LoadBalancerProbeError(
            f"can't pin the route for answers to probes: {candidates[0]} is a port of {master}, which takes its "
            f"packets; name {master} in loadBalancerProbe.devices"
        )
    try:
        parse_device(name)
    except ValueError as error:
        raise LoadBalancerProbeError(
            f"can't rewrite probes on the default route's device: {error}; rename it, or name another as "
            "loadBalancerProbe.devices"
        ) from error
    if name not in there:
        return name, f"device {name} (there is no such device)"
    return name, None if there[name].is_up else f"device {name} (it is down)"


def _master(name: str, there: dict[str, Link]) -> str | None:
    """Who takes the packets of a device; the members of a VRF keep theirs."""
    master = there[name].master if name in there else None
    if master is None or (master in there and there[master].kind == "vrf"):
        return None
    return master


# --- IPv6 ----------------------------------------------------------------------------------------------------------


def judge_addresses(device: str, addresses: Iterable[NodeAddress]) -> Evidence:
    """Whether a node has IPv6, by its own addresses.

    Args:
        device: whose addresses count: pods have some on others.
        addresses: all of the node.

    Returns:
        The evidence; an address that is still tried out (RFC 4862) is none yet.
    """
    own = [address for address in addresses if address.dev == device and address.is_global]
    for address in own:
        if address.is_usable:
            return Evidence(has_ipv6=True, sentence=f"{device} has {address.address}")
    tried = f"; {own[0].address} is there, and not usable (tentative, or a duplicate)" if own else ""
    return Evidence(
        has_ipv6=False,
        sentence=f"no IPv6 address of scope global on {device}{tried}",
        missing=f"an IPv6 address of scope global on {device}",
    )


# --- routes --------------------------------------------------------------------------------------------------------


def plan_pins(dev: str | None, there: Sequence[Pin]) -> PinPlan:
    """Compare the routes to the rewritten address with the one that is wanted.

    It has the lowest metric that IPv6 knows, so it wins against whatever others install, unless they take that too.

    Args:
        dev: where answers have to go out; None: no route is wanted any more.
        there: the routes to just that address.

    Returns:
        The plan.

    Raises:
        LoadBalancerProbeError: somebody else's route leads elsewhere, and would win.
    """
    ours = tuple(pin for pin in there if pin.protocol == Protocol.HOSTROUTING)
    if dev is None:
        return PinPlan(remove=ours)
    wanted = Pin(PROBE_SOURCE, dev, Protocol.HOSTROUTING, _BEST_METRIC)
    foreign = tuple(pin for pin in there if pin not in ours and pin.metric <= _BEST_METRIC)
    for pin in foreign:
        if (pin.gateway, pin.dev) != (wanted.gateway, wanted.dev):
            raise LoadBalancerProbeError(
                f"can't pin the route for answers to probes ({wanted}): somebody else's route is in its place ({pin}); "
                f"have its owner remove it: ip -6 route show {REWRITTEN_SOURCE}"
            )
    kept = foreign or tuple(pin for pin in ours if pin == wanted)
    return PinPlan(
        add=() if kept else (wanted,), remove=tuple(pin for pin in ours if pin not in kept), unchanged=kept[:1]
    )
