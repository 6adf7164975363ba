"""The phase tasks of the load balancer's probes: config in, a node that answers them or an error that says why not.

The way of the data: read the node -> plan (pure) -> install for the next boot -> load -> pin -> see that it holds.
"""

from __future__ import annotations

import errno as errnos
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import attrs

from hostrouting.azure import nodes
from hostrouting.azure.config import Ipv6Detection
from hostrouting.azure.errors import LoadBalancerProbeError
from hostrouting.azure.probe.part import probe_part
from hostrouting.azure.probe.plan import (
    ALWAYS,
    Evidence,
    ProbePlan,
    ProbeReport,
    choose_device,
    judge_addresses,
    judge_assigned,
    plan_pins,
)
from hostrouting.azure.probe.ruleset import PROBE, REMOVAL, REWRITTEN_SOURCE, TABLE, render_ruleset
from hostrouting.boot.files import locked
from hostrouting.boot.host import Host
from hostrouting.boot.installation import BootPlan, exclusive, install_part, is_installed, plan_part, remove_part
from hostrouting.kernel.waiting import look_until
from hostrouting.model.errors import ConfigError
from phases import all_or_nothing

if TYPE_CHECKING:
    from ipaddress import IPv6Address

    from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
    from hostrouting.azure.probe.port import Pin, ProbeNode
    from hostrouting.boot.parts import Part
    from phases import CancelScope, Undo

__all__ = ["ConfigureLoadBalancerProbe", "RemoveLoadBalancerProbe", "plan_next_boot", "plan_probe"]

NOT_ENABLED = "loadBalancerProbe isn't enabled in the config"
NOT_INSTALLED = "nothing of it is installed"


# --- the plan ----------------------------------------------------------------------------------------------------


def plan_probe(config: HostNetworking, host: Host, scope: CancelScope, *, node: ProbeNode | None = None) -> ProbePlan:
    """Plan for the node as it is at this moment, changing nothing and waiting for nothing but Azure's answer.

    Args:
        config: what is wanted.
        host: where.
        scope: ends the wait for the metadata service, where that is to be asked.
        node: its IPv6 side; None: this kernel's.

    Returns:
        The plan; for an image an empty one, as it has neither rules nor routes.

    Raises:
        ConfigError: an image, and no devices are named.
        LoadBalancerProbeError: the node can't be asked, or what is wanted can't be done on it.
        FileError: what is installed can't be told.
    """
    probe = config.load_balancer_probe
    if not probe.enabled:
        return _plan_removal(host, node, is_asked_for=False)
    if host.is_image:
        return ProbePlan(_device_of_image(probe))
    node = nodes.probe_node(host, node)
    return _plan_now(probe, host, node, _assigned(probe, node, scope))


def plan_next_boot(config: HostNetworking, host: Host, plan: ProbePlan) -> BootPlan:
    """Plan what stays for the next boot, changing nothing.

    Args:
        config: what is wanted.
        host: where.
        plan: what ``plan_probe`` has made of it.

    Returns:
        The plan; an empty one where it isn't known for which device, as then nothing is changed.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    probe = config.load_balancer_probe
    if not probe.enabled:
        return plan_part(host, config.consumer, None, PROBE)
    if plan.skipped_because is not None or plan.device is None:
        return BootPlan()
    return plan_part(host, config.consumer, probe_part(plan.device, host.layout, required=probe.required), PROBE)


def _assigned(probe: LoadBalancerProbe, node: ProbeNode, scope: CancelScope) -> tuple[IPv6Address, ...] | None:
    """What the cloud has assigned, if that counts: asked once, before anything is held or waited for."""
    return node.assigned_addresses(scope) if probe.ipv6_detection is Ipv6Detection.METADATA else None


def _plan_now(
    probe: LoadBalancerProbe,
    host: Host,
    node: ProbeNode,
    assigned: tuple[IPv6Address, ...] | None,
    *,
    is_last: bool = False,
) -> ProbePlan:
    """Plan for this moment; the last time that is asked, rules that are required wait for no address any more."""
    device, missing = choose_device(probe.devices or node.default_devices(), node.links())
    if device is None or missing is not None:
        return ProbePlan(device, missing=missing)
    evidence = _judge(probe, node, device, assigned)
    sentence = evidence.sentence
    # A false no costs the service, a false yes nothing: without probes the rules match nothing.
    if not evidence.has_ipv6:
        may_come = probe.required and evidence.missing is not None
        if is_installed(host, PROBE):
            sentence += ", but it is installed already, and stays"
        elif not may_come:
            return ProbePlan(device, sentence, sentence, evidence.missing)
        elif not is_last:
            return ProbePlan(device, sentence, missing=evidence.missing)
        else:
            sentence += ", but it may come, and the rules are required"
    text = render_ruleset(device)
    after = node.dry_run(text, TABLE)
    return ProbePlan(
        device,
        sentence,
        ruleset=text,
        rules_before=node.listing(TABLE),
        rules_after=after,
        pins=plan_pins(device, node.pins(REWRITTEN_SOURCE)),
    )


def _judge(
    probe: LoadBalancerProbe, node: ProbeNode, device: str, assigned: tuple[IPv6Address, ...] | None
) -> Evidence:
    if probe.ipv6_detection is Ipv6Detection.ALWAYS:
        return ALWAYS
    if assigned is not None:
        return judge_assigned(assigned)
    return judge_addresses(device, node.addresses())


def _device_of_image(probe: LoadBalancerProbe) -> str:
    if not probe.devices:
        raise ConfigError(
            [
                (
                    "hostNetworking.loadBalancerProbe.devices",
                    "must be given for an image: there is no kernel to ask which device its default route has",
                )
            ]
        )
    return probe.devices[0]


# --- carrying it out ---------------------------------------------------------------------------------------------


@attrs.frozen
class ConfigureLoadBalancerProbe:
    """Rewrite the IPv6 health probes of Azure's load balancer, now and at every boot, on a node that has IPv6.

    Not enabled: what an earlier run installed is removed. No IPv6: nothing is installed, but what is there already is
    kept up; where the rules are required an address may come later, so they are installed all the same.

    Args:
        config: what is wanted.
        host: where; None: this host.
        node: its IPv6 side; None: this kernel's, by nft and netlink.
    """

    name: ClassVar[str] = "configure-load-balancer-probe"

    config: HostNetworking
    host: Host | None = attrs.field(default=None, kw_only=True)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Do it.

        Returns:
            What was changed, or why nothing was; with a ``problem`` if it couldn't be and the config doesn't require
            it. Then it is installed for the next boot all the same, if it is known for which device.

        Raises:
            LoadBalancerProbeError: it is required and can't be done; everything is as before.
            ConfigError: an image, and no devices are named.
            FileError: a file can't be written, or the lock can't be taken; everything is as before.
            UnitError: systemd refuses, or doesn't hold the gate; likewise.
        """
        host, probe = self.host or Host(), self.config.load_balancer_probe
        if not probe.enabled:
            return _remove(host, self.node, scope, is_asked_for=False)
        if host.is_image:
            return self._install(host, scope, ProbeReport(_device_of_image(probe)))
        node = nodes.probe_node(host, self.node)
        try:
            return self._carry_out(host, node, scope)
        except LoadBalancerProbeError as error:
            if probe.required:
                raise
            # With what couldn't be put back, if anything.
            problem = "\n".join([str(error), *getattr(error, "__notes__", ())])
            return self._install(host, scope, ProbeReport(_known_device(probe, node), problem=problem))

    def _carry_out(self, host: Host, node: ProbeNode, scope: CancelScope) -> ProbeReport:
        probe = self.config.load_balancer_probe
        assigned = _assigned(probe, node, scope)

        def look(*, is_last: bool = False) -> tuple[ProbeReport, str | None]:
            with locked(host.layout.lock, scope):
                plan = _plan_now(probe, host, node, assigned, is_last=is_last)
                is_new = False
                if plan.device is not None and plan.missing is None and plan.skipped_because is None:
                    with all_or_nothing(scope) as undo:
                        is_new = install_part(host, self.config.consumer, self._part(host, plan.device), undo)
                        _apply(plan, node, scope, undo)
                        _see_way(node, (*plan.pins.add, *plan.pins.unchanged)[0])
                report = ProbeReport(
                    plan.device,
                    plan.evidence,
                    plan.skipped_because,
                    rules_changed=plan.has_new_rules,
                    pins=plan.pins,
                    files_changed=is_new,
                )
                return report, plan.missing

        report, missing = look_until(host.routes, scope, probe.wait_seconds, look)
        if missing is not None and probe.required:
            report, missing = look(is_last=True)
        if missing is not None and report.skipped_because is None:
            raise LoadBalancerProbeError(
                f"can't rewrite the load balancer's probes: waited {probe.wait_seconds} s and still missing is "
                f"{missing}; bring it up, name another as loadBalancerProbe.devices, or raise its waitSeconds"
            )
        return report

    def _install(self, host: Host, scope: CancelScope, report: ProbeReport) -> ProbeReport:
        """Only what stays for the next boot, which may go better."""
        if report.device is None:
            return report
        with exclusive(host, scope), all_or_nothing(scope) as undo:
            is_new = install_part(host, self.config.consumer, self._part(host, report.device), undo)
        return attrs.evolve(report, files_changed=is_new)

    def _part(self, host: Host, device: str) -> Part:
        return probe_part(device, host.layout, required=self.config.load_balancer_probe.required)


def _known_device(probe: LoadBalancerProbe, node: ProbeNode) -> str | None:
    try:
        return choose_device(probe.devices or node.default_devices(), node.links())[0]
    except LoadBalancerProbeError:
        return next(iter(probe.devices), None)  # the problem that is reported already


def _apply(plan: ProbePlan, node: ProbeNode, scope: CancelScope, undo: Undo) -> None:
    """Load the rules, see them in force, and change the routes."""
    if plan.has_new_rules:
        scope.check()
        undo.push(partial(_put_back, node, plan.rules_before))
        node.load(plan.ruleset)
        _see_rules(node, plan)
    # On the way back those of before come first, each in the place of what took its own.
    for pin in plan.pins.add:
        undo.push(partial(node.unpin, pin))
    for pin in plan.pins.remove:
        undo.push(partial(node.pin, pin))
    for pin in plan.pins.add:
        scope.check()
        node.pin(pin)
    for pin in plan.pins.remove:
        scope.check()
        node.unpin(pin)


def _see_way(node: ProbeNode, pin: Pin) -> None:
    """A policy rule may lead past table main, and others may have changed it meanwhile."""
    hop = node.next_hop(REWRITTEN_SOURCE)
    if hop is not None and (hop.dev, hop.gateway) == (pin.dev, pin.gateway):
        return
    instead = "nowhere" if hop is None else f"{'' if hop.gateway is None else f'via {hop.gateway} '}dev {hop.dev}"
    raise LoadBalancerProbeError(
        f"the pinned route doesn't win ({pin}): answers to probes would go {instead}; look at: ip -6 rule; "
        f"ip -6 route show table all {REWRITTEN_SOURCE}"
    )


def _see_rules(node: ProbeNode, plan: ProbePlan) -> None:
    if node.listing(TABLE) != plan.rules_after:
        raise LoadBalancerProbeError(
            f"the nftables table ip6 {TABLE} isn't as it was loaded: somebody else changes it; look at: "
            f"nft list table ip6 {TABLE}"
        )


def _put_back(node: ProbeNode, before: str | None) -> None:
    if node.listing(TABLE) != before:
        node.load(REMOVAL + (before or ""))


# --- and back ----------------------------------------------------------------------------------------------------


@attrs.frozen
class RemoveLoadBalancerProbe:
    """Take back everything that was ever installed for probes, without the config that asked for it.

    Args:
        host: where; None: this host.
        node: its IPv6 side; None: this kernel's, by nft and netlink.
    """

    name: ClassVar[str] = "remove-load-balancer-probe"

    host: Host | None = attrs.field(default=None, kw_only=True)
    node: ProbeNode | None = attrs.field(default=None, kw_only=True)

    def do(self, scope: CancelScope) -> ProbeReport:
        """Do it.

        Returns:
            What was removed; with a ``problem`` if there is no nft, so that rules may still be in force.

        Raises:
            LoadBalancerProbeError: the kernel refuses; rules and routes are as before, and so are the files.
            FileError: a file can't be removed; a later run goes on from there.
            UnitError: systemd refuses; likewise.
        """
        return _remove(self.host or Host(), self.node, scope, is_asked_for=True)


def _plan_removal(host: Host, node: ProbeNode | None, *, is_asked_for: bool) -> ProbePlan:
    """What to take back.

    Args:
        host: where.
        node: its IPv6 side; None: this kernel's.
        is_asked_for: not because a config doesn't enable it; else a node on which nothing was installed isn't asked.
    """
    skipped = NOT_INSTALLED if is_asked_for else NOT_ENABLED
    if host.is_image or not (is_asked_for or is_installed(host, PROBE)):
        return ProbePlan(skipped_because=skipped)
    node = nodes.probe_node(host, node)
    pins = plan_pins(None, node.pins(REWRITTEN_SOURCE))
    before = _listing_if_any(node)
    return ProbePlan(skipped_because=skipped, ruleset="" if before is None else REMOVAL, rules_before=before, pins=pins)


def _listing_if_any(node: ProbeNode) -> str | None:
    try:
        return node.listing(TABLE)
    except LoadBalancerProbeError as error:
        if error.errno == errnos.ENOENT:
            return None  # no nft, which alone could have loaded a table
        raise


def _why_rules_may_stay(node: ProbeNode) -> str | None:
    """Without nft nobody sees whether rules that were loaded are in force still."""
    try:
        node.listing(TABLE)
    except LoadBalancerProbeError as error:
        return f"{error}; then again: hostrouting lb-probe remove, as rules in force stay until that or a boot"
    return None


def _remove(host: Host, node: ProbeNode | None, scope: CancelScope, *, is_asked_for: bool) -> ProbeReport:
    if _plan_removal(host, node, is_asked_for=is_asked_for).is_empty and not is_installed(host, PROBE):
        return ProbeReport(skipped_because=NOT_INSTALLED if is_asked_for else NOT_ENABLED)
    with exclusive(host, scope):
        plan = _plan_removal(host, node, is_asked_for=is_asked_for)
        might_stay = plan.rules_before is None and not host.is_image and is_installed(host, PROBE)
        problem = _why_rules_may_stay(nodes.probe_node(host, node)) if might_stay else None
        if not plan.is_empty:
            with all_or_nothing(scope) as undo:
                _apply(plan, nodes.probe_node(host, node), scope, undo)
        is_new = bool(remove_part(host, PROBE))
        # Who flushes the ruleset gives the rules back, if need be without the lock; now nobody does it any more.
        again = _plan_removal(host, node, is_asked_for=True)
        if again.has_new_rules:
            there = nodes.probe_node(host, node)
            there.load(again.ruleset)
            _see_rules(there, again)
    return ProbeReport(problem=problem, rules_changed=plan.has_new_rules, pins=plan.pins, files_changed=is_new)
