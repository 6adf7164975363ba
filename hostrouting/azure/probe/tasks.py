"""The phase tasks of the load balancer's probes: config in, a node that answers them or an error that says why not.

The order: install for the next boot -> load the rules -> pin the route -> see that it wins.
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

# IPv6 has one route for a destination and a metric: whose place the pinned one takes.
_HOST_ROUTE = re.compile(rf"{REWRITTEN_SOURCE} .*? metric 1\b")


@attrs.frozen
class ProbeReport:
    """The changes that the probes' rewriting needs, or has needed.

    Args:
        device: by which probes come in; None: nothing is wanted.
        skipped_because: why there is nothing to do; None: there is, or all is as wanted.
        rules: what becomes of the nftables table: ``loaded`` or ``removed``; None: it is as wanted.
        changes: the route, and what is installed for the next boot.
    """

    device: str | None = None
    skipped_because: str | None = None
    rules: str | None = None
    changes: Changes = attrs.field(factory=Changes)

    @property
    def changed(self) -> bool:
        """Return whether rules, route or files of the next boot change."""
        return self.rules is not None or bool(self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, the route as ``ip -6 route show`` prints it."""
        told = fields_in_json(self, "device", "skipped_because", "rules")
        return {"schema": 1} | self.changes.to_json() | {"changed": self.changed} | told


# --- the plan ----------------------------------------------------------------------------------------------------


def plan_probe(config: HostNetworking, host: Host, scope: CancelScope, *, node: ProbeNode | None = None) -> ProbeReport:
    """Plan for the node as it is at this moment, changing nothing and waiting for nothing but Azure's answer.

    Args:
        config: what is wanted.
        host: where.
        scope: ends the wait for the metadata service, where that is to be asked.
        node: its IPv6 side; None: this kernel's.

    Returns:
        What would change; of an image only what stays for its boot.

    Raises:
        LoadBalancerProbeError: the node can't be asked, or what is wanted can't be done on it.
        FileError: what is installed can't be told.
        UnitError: systemd can't be asked.
    """
    probe = config.load_balancer_probe
    if not probe.enabled:
        why = "loadBalancerProbe isn't enabled in the config"
        return _plan_removal(host, node, why) if is_installed(host, PROBE) else ProbeReport(None, why)
    boot = _plan_boot(host, config).changes
    if host.is_image:
        return ProbeReport(probe.device, changes=boot)
    node = given_or_real(host, node, LinuxProbeNode)
    # What is installed stays, as a wrong no would cost the service.
    is_asked = probe.ipv6_detection is Ipv6Detection.METADATA and not is_installed(host, PROBE)
    if is_asked and not node.assigned_addresses(scope):
        return ProbeReport(skipped_because="Azure's metadata service has assigned no IPv6 address")
    _refuse_port(probe.device, host.routes.links())
    rules = None if ruleset.has_rules(node.listing(TABLE), probe.device) else "loaded"
    wanted, was = ruleset.host_route(probe.device), _in_place(node.route())
    pinned = () if was == wanted else (Change(wanted, "replaced" if was else "added", was),)
    return ProbeReport(probe.device, rules=rules, changes=Changes(routes=pinned) | boot)


def _refuse_port(device: str, links: Iterable[Link]) -> None:
    """Refuse the port of a bridge or bond: what goes out by it never arrives. A member of a VRF is none."""
    kinds = {link.name: link.kind for link in links}
    master = next((link.master for link in links if link.name == device), None)
    if master is not None and kinds.get(master) != "vrf":
        raise LoadBalancerProbeError(
            f"can't rewrite the load balancer's probes: {device} is a port of {master}, which takes its packets",
            hint=f"name {master} in loadBalancerProbe.devices",
        )


def _in_place(route: str | None) -> str | None:
    """Return a route if it is in the place of the pinned one, without the flags that ip(8) prints behind it."""
    return match[0] if (match := _HOST_ROUTE.match(route or "")) else None


def _plan_boot(host: Host, config: HostNetworking | None) -> BootPlan:
    """Plan the next boot as a config that is enabled wants it; None: without the part."""
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


# --- there -------------------------------------------------------------------------------------------------------


@attrs.frozen
class ConfigureLoadBalancerProbe:
    """Rewrite the IPv6 health probes of Azure's load balancer, now and at every boot; or take that back.

    Args:
        config: what is wanted.
        host: where; None: this host.
        node: its IPv6 side; None: this kernel's, by nft and ip.
    """

    name = "configure-load-balancer-probe"

    config: HostNetworking
    host: Host | None = attrs.field(default=None, kw_only=True)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Load the rules, pin the route, and install both for the next boot; or nothing of it.

        Returns:
            What was changed, or why nothing was; of an image what was installed.

        Raises:
            LoadBalancerProbeError: it can't be done; rules, route and files are as before.
            FileError: a file can't be written; likewise.
            UnitError: systemd refuses; likewise.
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
    """Do what the unit does at boot, and see that the route wins: a rule may lead past table main."""
    wanted = ruleset.host_route(device)
    node.load(ruleset.render_ruleset(device))
    node.pin(wanted)
    if _in_place(route := node.route()) != wanted:
        raise LoadBalancerProbeError(
            f"the pinned route doesn't win ({wanted}): answers to probes would take {route or 'none'}",
            hint=f"look at: ip -6 rule; ip -6 route show table all {REWRITTEN_SOURCE}",
        )


def _put_back(node: ProbeNode, rules: str | None = None, route: str | None = None) -> None:
    """Take rules and route away, and give a node those that it had."""
    node.load(ruleset.REMOVAL + (rules or ""))
    node.unpin()
    if was := _in_place(route):
        node.pin(was)


# --- and back ----------------------------------------------------------------------------------------------------


@attrs.frozen
class RemoveLoadBalancerProbe:
    """Take back everything that was ever installed for probes, without the config that asked for it.

    Args:
        host: where; None: this host.
        node: its IPv6 side; None: this kernel's, by nft and ip.
    """

    name = "remove-load-balancer-probe"

    host: Host | None = attrs.field(default=None, kw_only=True)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Remove files and units, then rules and route.

        Returns:
            What was removed.

        Raises:
            LoadBalancerProbeError: the kernel refuses; a later run goes on from there.
            FileError: a file can't be removed; likewise.
            UnitError: systemd refuses; likewise.
        """
        host = (self.host or Host()).within(scope)
        with exclusive_run(host, scope, is_wanting=False) as done:
            return _remove(_plan_removal(host, self.node, "nothing of it is installed"), host, self.node, scope, done)


def _remove(plan: ProbeReport, host: Host, node: ProbeNode | None, scope: CancelScope, done: Done) -> ProbeReport:
    """Carry out a removal, of which a plan without changes says why it is none."""
    if not plan.changed:
        return plan
    # First, so that no start of the node and no flush gives the rules back.
    done.add(take_away(_plan_boot(host, None), host, scope))
    if not host.is_image:
        _put_back(given_or_real(host, node, LinuxProbeNode))
    done.changes |= Changes(routes=plan.changes.routes)
    return attrs.evolve(plan, skipped_because=None, changes=done.changes)
