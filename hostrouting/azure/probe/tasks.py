"""The tasks that make a node answer the load balancer's probes, or raise an error that says why it can't.

The steps are: install for the next boot -> load the rules -> pin the route -> check that it wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import attrs

from hostrouting.azure.config import HostNetworking, Ipv6Detection
from hostrouting.azure.nodes import LoadBalancerProbeError, given_or_real
from hostrouting.azure.probe import ruleset
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.part import probe_part
from hostrouting.azure.probe.port import ProbeNode
from hostrouting.azure.probe.ruleset import PROBE, REWRITTEN_SOURCE, TABLE
from hostrouting.boot.host import Host
from hostrouting.boot.installation import is_installed, prepare, put_in_place, take_away
from hostrouting.boot.locks import Done, exclusive_run
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import BootPlan, plan_next_boot
from hostrouting.model.changes import Change, Changes
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.links import Link
from phases import CancelScope, all_or_nothing

# IPv6 allows only one route for a destination and metric, so the pinned route replaces it.
_HOST_ROUTE = re.compile(rf"{REWRITTEN_SOURCE} .*? metric 1\b")


@attrs.frozen
class ProbeReport:
    """The changes that the rewriting of probes needs or has made.

    Args:
        device: the interface through which probes arrive, or None if probes aren't to be rewritten.
        skipped_because: the reason why there is nothing to do, or None if there is no such reason.
        rules: the action on the nftables table, ``loaded`` or ``removed``, or None if the table is as wanted.
        changes: the changes of the route, and of the installation for the next boot.
    """

    device: str | None = None
    skipped_because: str | None = None
    rules: str | None = None
    changes: Changes = attrs.field(factory=Changes)

    @property
    def changed(self) -> bool:
        """Return whether the rules, the route or the installation for the next boot change."""
        return self.rules is not None or bool(self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with the route as ``ip -6 route show`` prints it."""
        told = fields_in_json(self, "device", "skipped_because", "rules")
        return {"schema": 1} | self.changes.to_json() | {"changed": self.changed} | told


# --- the plan ----------------------------------------------------------------------------------------------------


def plan_probe(config: HostNetworking, host: Host, scope: CancelScope, *, node: ProbeNode | None = None) -> ProbeReport:
    """Plan for the node's current state, without changing anything, and wait only for Azure's metadata service.

    Args:
        config: the wanted config.
        host: the host to work on.
        scope: cancels the wait for the metadata service, if it is queried.
        node: the host's IPv6 side; by default that of this kernel.

    Returns:
        The planned changes; for an image, only those for its boot.

    Raises:
        LoadBalancerProbeError: the node can't be queried, or can't do what is wanted.
        FileError: the installation can't be read.
        UnitError: systemd can't be queried.
    """
    probe = config.load_balancer_probe
    if not probe.enabled:
        why = "loadBalancerProbe isn't enabled in the config"
        return _plan_removal(host, node, why) if is_installed(host, PROBE) else ProbeReport(None, why)
    boot = _plan_boot(host, config).changes
    if host.is_image:
        return ProbeReport(probe.device, changes=boot)
    node = given_or_real(host, node, LinuxProbeNode)
    # An existing installation is kept, because removing it after a wrong answer would interrupt the service.
    is_asked = probe.ipv6_detection is Ipv6Detection.METADATA and not is_installed(host, PROBE)
    if is_asked and not node.assigned_addresses(scope):
        return ProbeReport(skipped_because="Azure's metadata service has assigned no IPv6 address")
    _refuse_port(probe.device, host.routes.links())
    rules = None if ruleset.has_rules(node.listing(TABLE), probe.device) else "loaded"
    wanted, was = ruleset.host_route(probe.device), _in_place(node.route())
    pinned = () if was == wanted else (Change(wanted, "replaced" if was else "added", was),)
    return ProbeReport(probe.device, rules=rules, changes=Changes(routes=pinned) | boot)


def _refuse_port(device: str, links: Iterable[Link]) -> None:
    """Refuse a port of a bridge or bond, because packets sent through it never arrive.

    A member of a VRF isn't a port.
    """
    kinds = {link.name: link.kind for link in links}
    master = next((link.master for link in links if link.name == device), None)
    if master is not None and kinds.get(master) != "vrf":
        raise LoadBalancerProbeError(
            f"can't rewrite the load balancer's probes: {device} is a port of {master}, which takes its packets",
            hint=f"name {master} in loadBalancerProbe.devices",
        )


def _in_place(route: str | None) -> str | None:
    """Return the route that the pinned one would replace, if any, without the flags that ip(8) prints after it."""
    return match[0] if (match := _HOST_ROUTE.match(route or "")) else None


def _plan_boot(host: Host, config: HostNetworking | None) -> BootPlan:
    """Plan the next boot with the part for an enabled config, or without the part if the config is None."""
    given = config or HostNetworking()
    parts = (probe_part(given.load_balancer_probe.device, given.consumer, host.layout),) if config else ()
    return plan_next_boot(host, Wanted((PROBE,), parts, given.consumer))


def _plan_removal(host: Host, node: ProbeNode | None, why: str) -> ProbeReport:
    boot = _plan_boot(host, None).changes
    if host.is_image:
        return ProbeReport(None, why, changes=boot)
    node = given_or_real(host, node, LinuxProbeNode)
    rules = None if node.listing(TABLE) is None else "removed"
    route = _in_place(node.route()) or ""
    gone = (Change(route, "removed"),) if " proto 217 " in route else ()
    return ProbeReport(None, why, rules, Changes(routes=gone) | boot)


# --- installation ------------------------------------------------------------------------------------------------


@attrs.frozen
class ConfigureLoadBalancerProbe:
    """Rewrite the IPv6 health probes of Azure's load balancer, now and at every boot, or undo that.

    Args:
        config: the wanted config.
        host: the host to work on; by default this host.
        node: the host's IPv6 side; by default that of this kernel, through nft and ip.
    """

    name = "configure-load-balancer-probe"

    config: HostNetworking
    host: Host | None = attrs.field(default=None, kw_only=True)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Load the rules, pin the route, and install both for the next boot, or change nothing if a step fails.

        Returns:
            The changes, or the reason why there are none; for an image, the changes of the installation.

        Raises:
            LoadBalancerProbeError: a step failed; rules, route and files are unchanged.
            FileError: a file can't be written; all changes are undone.
            UnitError: systemd refuses; all changes are undone.
        """
        host = (self.host or Host()).within(scope)
        with exclusive_run(host, scope, is_wanting=self.config.load_balancer_probe.enabled) as done:
            plan = plan_probe(self.config, host, scope, node=self.node)
            if plan.device is None:
                return _remove(plan, host, self.node, scope, done)
            boot = _plan_boot(host, self.config)
            with all_or_nothing() as undo:
                prepare(boot, host, undo)
                placed = put_in_place(boot, host, undo)
                if not host.is_image:
                    node = given_or_real(host, self.node, LinuxProbeNode)
                    rules = node.listing(TABLE)
                    undo.push(partial(_put_back, node, rules, node.route()))
                    scope.check()
                    _load(node, plan.device)
                    plan = attrs.evolve(plan, rules=None if node.listing(TABLE) == rules else "loaded")
            done.changes = placed | Changes(routes=plan.changes.routes)
            done.add(take_away(boot, host, scope))
            return attrs.evolve(plan, changes=done.changes)


def _load(node: ProbeNode, device: str) -> None:
    """Do what the unit does at boot, and check that the route wins, because a rule may bypass table main."""
    wanted = ruleset.host_route(device)
    node.load(ruleset.render_ruleset(device))
    node.pin(wanted)
    if _in_place(route := node.route()) != wanted:
        raise LoadBalancerProbeError(
            f"the pinned route doesn't win ({wanted}): answers to probes would take {route or 'none'}",
            hint=f"look at: ip -6 rule; ip -6 route show table all {REWRITTEN_SOURCE}",
        )


def _put_back(node: ProbeNode, rules: str | None = None, route: str | None = None) -> None:
    """Remove the rules and the route, and restore the given ones."""
    node.load(ruleset.REMOVAL + (rules or ""))
    node.unpin()
    if was := _in_place(route):
        node.pin(was)


# --- removal -----------------------------------------------------------------------------------------------------


@attrs.frozen
class RemoveLoadBalancerProbe:
    """Remove everything that was ever installed for probes; no config is needed.

    Args:
        host: the host to work on; by default this host.
        node: the host's IPv6 side; by default that of this kernel, through nft and ip.
    """

    name = "remove-load-balancer-probe"

    host: Host | None = attrs.field(default=None, kw_only=True)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Remove the files and units, and then the rules and the route.

        Returns:
            The changes.

        Raises:
            LoadBalancerProbeError: the kernel refuses; a later run continues from there.
            FileError: a file can't be removed; a later run continues from there.
            UnitError: systemd refuses; a later run continues from there.
        """
        host = (self.host or Host()).within(scope)
        with exclusive_run(host, scope, is_wanting=False) as done:
            return _remove(_plan_removal(host, self.node, "nothing of it is installed"), host, self.node, scope, done)


def _remove(plan: ProbeReport, host: Host, node: ProbeNode | None, scope: CancelScope, done: Done) -> ProbeReport:
    """Carry out a removal; if the plan has no changes, return it, because it says why."""
    if not plan.changed:
        return plan
    # Files and units are removed first, so that neither a start of the node nor a flush loads the rules again.
    done.add(take_away(_plan_boot(host, None), host, scope))
    if not host.is_image:
        _put_back(given_or_real(host, node, LinuxProbeNode))
    done.changes |= Changes(routes=plan.changes.routes)
    return attrs.evolve(plan, skipped_because=None, changes=done.changes)
