"""Tasks that install and remove the rewriting of load balancer probes.

The installation writes the files for the next boot, loads the rules, adds the route, and verifies
that the route takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import attrs

from hostrouting.azure.config import HostNetworking, Ipv6Detection, to_networking
from hostrouting.azure.nodes import LoadBalancerProbeError, node_or_default
from hostrouting.azure.probe import ruleset
from hostrouting.azure.probe.node import LinuxProbeNode, ProbeNode
from hostrouting.azure.probe.ruleset import PROBE, REWRITTEN_SOURCE, probe_part
from hostrouting.boot.host import Host
from hostrouting.boot.installation import apply_additions, apply_removals, is_installed, prepare
from hostrouting.boot.locks import Done, exclusive_run
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import BootPlan, plan_next_boot
from hostrouting.model.changes import Change, Changes
from hostrouting.model.jsonable import fields_in_json
from hostrouting.model.links import Link
from hostrouting.model.values import frozen
from hostrouting.tasks.arguments import HostTask, to_host
from phases import CancelScope, all_or_nothing

# A route with the destination and metric of our route. An IPv6 table has at most one such route,
# which our route replaces.
_HOST_ROUTE = re.compile(rf"{REWRITTEN_SOURCE} .*? metric 1\b")


@frozen
class ProbeReport:
    """The planned or completed changes for probe rewriting.

    Args:
        device: the interface that receives the probes; None if probe rewriting is disabled.
        skipped_because: why probe rewriting isn't installed, or None.
        rules: ``loaded`` or ``removed``; None if the nftables table doesn't change.
        changes: the changes to the route and to the boot-time installation.
    """

    device: str | None = None
    skipped_because: str | None = None
    rules: str | None = None
    changes: Changes = attrs.field(factory=Changes)

    @property
    def changed(self) -> bool:
        """Return whether the rules, the route or the boot-time installation change."""
        return self.rules is not None or bool(self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with the route in ``ip -6 route show`` format."""
        fields = fields_in_json(self, "device", "skipped_because", "rules")
        return {"schema": 1} | self.changes.to_json() | {"changed": self.changed} | fields


# --- the plan -------------------------------------------------------------------------------------


def plan_probe(
    config: HostNetworking,
    *,
    host: Host | None = None,
    scope: CancelScope | None = None,
    node: ProbeNode | None = None,
) -> ProbeReport:
    """Plan the changes for the host's current state; this may query Azure's metadata service.

    Args:
        node: access to the node's IPv6 configuration; by default, to this host's.

    Returns:
        The planned changes; for an image, only the boot-time installation.

    Raises:
        LoadBalancerProbeError: the host can't be queried, or doesn't support the config.
        FileError: the installation can't be read.
        UnitError: systemd can't be queried.
    """
    host = to_host(host)
    probe = to_networking(config).load_balancer_probe
    if not probe.enabled:
        why = "loadBalancerProbe isn't enabled in the config"
        if not is_installed(host, PROBE):
            return ProbeReport(skipped_because=why)
        return _plan_removal(host, node, why)
    boot = _plan_boot(host, config).changes
    if host.is_image:
        return ProbeReport(probe.device, changes=boot)
    node = node_or_default(host, node, LinuxProbeNode)
    # A wrong response of the metadata service would remove an installation. So don't ask the
    # service if probe rewriting is installed already.
    uses_metadata = probe.ipv6_detection is Ipv6Detection.METADATA
    needs_ipv6 = uses_metadata and not is_installed(host, PROBE)
    if needs_ipv6 and not node.assigned_addresses(scope or CancelScope()):
        why = "Azure's metadata service has assigned no IPv6 address"
        return ProbeReport(skipped_because=why)
    _refuse_port(probe.device, host.routes.facts().links)
    rules = None if ruleset.has_rules(node.listing(), probe.device) else "loaded"
    route = _plan_route(ruleset.host_route(probe.device), _in_place(node.route()))
    return ProbeReport(probe.device, rules=rules, changes=route | boot)


def _plan_route(wanted: str, replaced: str | None) -> Changes:
    if replaced == wanted:
        return Changes()
    action = "replaced" if replaced else "added"
    return Changes(routes=(Change(wanted, action, replaced),))


def _refuse_port(device: str, links: Iterable[Link]) -> None:
    """Reject a port of a bridge or bond, because packets sent through it are lost.

    VRF members are allowed.
    """
    kinds = {link.name: link.kind for link in links}
    master = next((link.master for link in links if link.name == device), None)
    if master is not None and kinds.get(master) != "vrf":
        raise LoadBalancerProbeError(
            f"can't rewrite the load balancer's probes: {device} is a port of {master}, "
            "which takes its packets",
            hint=f"name {master} in loadBalancerProbe.devices",
        )


def _in_place(route: str | None) -> str | None:
    """Return the route, without its trailing flags, that our route would replace, or None."""
    return match[0] if (match := _HOST_ROUTE.match(route or "")) else None


def _plan_boot(host: Host, config: HostNetworking | None) -> BootPlan:
    """Plan the boot-time installation. With None as the config, plan its removal."""
    if config is None:
        return plan_next_boot(host, Wanted((PROBE,), (), HostNetworking().consumer))
    part = probe_part(config.load_balancer_probe.device, config.consumer, host.layout)
    return plan_next_boot(host, Wanted((PROBE,), (part,), config.consumer))


def _plan_removal(host: Host, node: ProbeNode | None, why: str) -> ProbeReport:
    boot = _plan_boot(host, None).changes
    if host.is_image:
        return ProbeReport(None, why, changes=boot)
    node = node_or_default(host, node, LinuxProbeNode)
    rules = None if node.listing() is None else "removed"
    route = _in_place(node.route()) or ""
    gone = (Change(route, "removed"),) if " proto 218 " in route else ()
    return ProbeReport(None, why, rules, Changes(routes=gone) | boot)


# --- installation ---------------------------------------------------------------------------------


@frozen
class ConfigureLoadBalancerProbe(HostTask):
    """A task that enables or disables probe rewriting, both immediately and at every boot.

    Args:
        node: access to the node's IPv6 configuration; by default, to this host's.
    """

    name = "configure-load-balancer-probe"

    config: HostNetworking = attrs.field(converter=to_networking)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Load the rules, add the route, and install both for the next boot, or undo all steps.

        Returns:
            The changes, or the reason why there are none; for an image, only the boot-time
            installation.

        Raises:
            LoadBalancerProbeError: a step failed; the rules, the route and the files are unchanged.
            FileError: a file can't be written; all changes are rolled back.
            UnitError: a systemd operation failed; all changes are rolled back.
        """
        host = self.host.within(scope)
        with exclusive_run(
            host,
            scope,
            is_installing=self.config.load_balancer_probe.enabled,
        ) as done:
            plan = plan_probe(
                self.config,
                host=host,
                scope=scope,
                node=self.node,
            )
            if plan.device is None:
                return _remove(plan, host, self.node, scope, done)
            boot = _plan_boot(host, self.config)
            with all_or_nothing() as undo:
                loaded = prepare(boot, host, undo)
                placed = apply_additions(boot, host, undo, loaded)
                if not host.is_image:
                    node = node_or_default(host, self.node, LinuxProbeNode)
                    rules = node.listing()
                    undo.push(partial(_put_back, node, rules, node.route()))
                    scope.check()
                    _load(node, plan.device)
                    plan = attrs.evolve(plan, rules=None if node.listing() == rules else "loaded")
            done.changes = placed | Changes(routes=plan.changes.routes)
            done.add(apply_removals(boot, host, scope))
            return attrs.evolve(plan, changes=done.changes)


def _load(node: ProbeNode, device: str) -> None:
    """Load the rules, add the route, and verify that packets use it, despite policy rules."""
    wanted = ruleset.host_route(device)
    node.load(ruleset.render_ruleset(device))
    node.add_host_route(wanted)
    route = node.route()
    if _in_place(route) != wanted:
        raise LoadBalancerProbeError(
            f"the host route doesn't win ({wanted}): "
            f"answers to probes would take {route or 'none'}",
            hint=f"look at: ip -6 rule; ip -6 route show table all {REWRITTEN_SOURCE}",
        )


def _put_back(node: ProbeNode, rules: str | None = None, route: str | None = None) -> None:
    """Remove our rules and our route, and restore the earlier ones, if any."""
    node.load(ruleset.REMOVAL + (rules or ""))
    node.delete_host_route()
    if was := _in_place(route):
        node.add_host_route(was)


# --- removal --------------------------------------------------------------------------------------


@frozen
class RemoveLoadBalancerProbe(HostTask):
    """A task that removes everything installed for probe rewriting; it needs no config.

    Args:
        node: access to the node's IPv6 configuration; by default, to this host's.
    """

    name = "remove-load-balancer-probe"

    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Remove the files and units, and then the rules and the route.

        Returns:
            The changes.

        Raises:
            LoadBalancerProbeError: a rule or route can't be removed; run the task again to resume.
            FileError: a file can't be removed; run the task again to resume.
            UnitError: a systemd operation failed; run the task again to resume.
        """
        host = self.host.within(scope)
        with exclusive_run(host, scope, is_installing=False) as done:
            plan = _plan_removal(host, self.node, "probe rewriting isn't installed")
            return _remove(plan, host, self.node, scope, done)


def _remove(
    plan: ProbeReport,
    host: Host,
    node: ProbeNode | None,
    scope: CancelScope,
    done: Done,
) -> ProbeReport:
    """Carry out a removal plan. A plan without changes is returned as it is."""
    if not plan.changed:
        return plan
    # Files and units are removed first. Otherwise, a start of the consumer or a flush could load
    # the rules again.
    done.add(apply_removals(_plan_boot(host, None), host, scope))
    if not host.is_image:
        _put_back(node_or_default(host, node, LinuxProbeNode))
    done.changes |= Changes(routes=plan.changes.routes)
    return attrs.evolve(plan, skipped_because=None, changes=done.changes)
