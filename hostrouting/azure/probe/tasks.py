"""The phase tasks of the load balancer's probes: config in, a node that answers them or an error that says why not.

The way of the data: read the node -> plan (pure) -> install for the next boot -> load -> pin -> see that it holds.
"""

from __future__ import annotations

import errno as errnos
from functools import partial

import attrs

from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe
from hostrouting.azure.nodes import LoadBalancerProbeError, given_or_real
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.part import probe_part
from hostrouting.azure.probe.plan import Evidence, ProbeReport, choose_device, judge_addresses, plan_pins
from hostrouting.azure.probe.port import Pin, ProbeNode
from hostrouting.azure.probe.ruleset import PROBE, REMOVAL, REWRITTEN_SOURCE, TABLE, render_ruleset
from hostrouting.boot.files import Run, alone, locked
from hostrouting.boot.host import Host
from hostrouting.boot.installation import install_part, is_installed, remove_parts, start_oneshot
from hostrouting.boot.parts import plan_part, plan_removal
from hostrouting.kernel.nexthops import unicast_defaults
from hostrouting.kernel.port import look_until
from hostrouting.model.changes import Changes
from hostrouting.model.errors import ConfigError
from phases import CancelScope, Undo, all_or_nothing

_NOT_ENABLED = "loadBalancerProbe isn't enabled in the config"


# --- the plan ----------------------------------------------------------------------------------------------------


def plan_probe(config: HostNetworking, host: Host, scope: CancelScope, *, node: ProbeNode | None = None) -> ProbeReport:
    """Plan for the node as it is at this moment, changing nothing and waiting for nothing but Azure's answer.

    Args:
        config: what is wanted.
        host: where.
        scope: ends the wait for the metadata service, where that is to be asked.
        node: its IPv6 side; None: this kernel's.

    Returns:
        What would change. Of an image only what stays for its boot; that isn't changed where no device is known.

    Raises:
        ConfigError: an image, and no devices are named.
        LoadBalancerProbeError: the node can't be asked, or what is wanted can't be done on it.
        FileError: what is installed can't be told.
        UnitError: systemd can't be asked.
    """
    probe = config.load_balancer_probe
    if not probe.enabled:
        plan = _plan_removal(host, node) if is_installed(host, PROBE) else ProbeReport()
        return attrs.evolve(plan, skipped_because=_NOT_ENABLED, boot=plan_removal(host, PROBE))
    if host.is_image:
        plan = ProbeReport(_device_of_image(probe))
    else:
        node = given_or_real(host, node, LinuxProbeNode)
        plan = _plan_now(probe, host, node, _told(probe, node, scope))
    if plan.skipped_because is not None or plan.device is None:
        return plan
    part = probe_part(plan.device, host.layout, required=probe.required)
    return attrs.evolve(plan, boot=plan_part(host, config.consumer, part))


def _told(probe: LoadBalancerProbe, node: ProbeNode, scope: CancelScope) -> Evidence | None:
    """What somebody else says of IPv6, if that counts: asked once, before anything is held or waited for."""
    if probe.ipv6_detection is Ipv6Detection.KERNEL:
        return None
    if probe.ipv6_detection is Ipv6Detection.ALWAYS:
        return Evidence(has_ipv6=True, sentence="ipv6Detection is ALWAYS")
    assigned = node.assigned_addresses(scope)
    what = assigned[0] if assigned else "no IPv6 address"
    return Evidence(bool(assigned), f"Azure's metadata service has assigned {what}")


def _plan_now(probe: LoadBalancerProbe, host: Host, node: ProbeNode, told: Evidence | None) -> ProbeReport:
    """Plan for this moment."""
    device, missing = _device(probe, host, node)
    if device is None or missing is not None:
        return ProbeReport(device, missing=missing)
    evidence = told or judge_addresses(device, node.addresses())
    sentence = evidence.sentence
    # A false no costs the service, a false yes nothing: without probes the rules match nothing.
    if not evidence.has_ipv6:
        if not is_installed(host, PROBE):
            may_come = probe.required and evidence.missing is not None
            return ProbeReport(device, sentence, None if may_come else sentence, evidence.missing)
        sentence += ", but it is installed already, and stays"
    after = node.dry_run(render_ruleset(device), TABLE)
    return _read_again(ProbeReport(device, sentence, rules_after=after), node)


def _device(probe: LoadBalancerProbe, host: Host, node: ProbeNode) -> tuple[str | None, str | None]:
    """The device by which probes come in, and what is missing of it; before IPv6 is there, IPv4 tells it."""
    routes = sorted(unicast_defaults(host.routes.default_routes()), key=lambda route: route.metric)
    of_ipv4 = (hop.dev for route in routes for hop in route.hops if hop.dev is not None and not hop.is_dead)
    return choose_device(probe.devices or (*node.default_devices(), *of_ipv4), host.routes.links())


def _known_device(probe: LoadBalancerProbe, host: Host, node: ProbeNode) -> str | None:
    try:
        return _device(probe, host, node)[0]
    except LoadBalancerProbeError:
        return next(iter(probe.devices), None)  # the problem that is reported already


def _read_again(plan: ProbeReport, node: ProbeNode) -> ProbeReport:
    """The same plan for what is in force by now."""
    return attrs.evolve(plan, rules_before=node.listing(TABLE), pins=plan_pins(plan.device, node.pins()))


def _device_of_image(probe: LoadBalancerProbe) -> str:
    if not probe.devices:
        path = "hostNetworking.loadBalancerProbe.devices"
        reason = "must be given for an image: there is no kernel to ask which device its default route has"
        raise ConfigError([(path, reason)])
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
        node: its IPv6 side; None: this kernel's, by nft and ip.
    """

    name = "configure-load-balancer-probe"

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
        with alone(host, scope, is_wanting=probe.enabled) as run:
            if not probe.enabled:
                is_there = is_installed(host, PROBE)
                return _remove(host, self.node, scope, run) if is_there else ProbeReport(skipped_because=_NOT_ENABLED)
            if host.is_image:
                report = ProbeReport(_device_of_image(probe))
                self._install(host, run, report.device)
                return attrs.evolve(report, boot=run.changes.of_boot)
            node = given_or_real(host, self.node, LinuxProbeNode)
            try:
                report = self._carry_out(host, node, scope, run)
            except LoadBalancerProbeError as error:
                if probe.required:
                    raise
                # With what couldn't be put back, if anything.
                problem = "\n".join([str(error), *getattr(error, "__notes__", ())])
                report = ProbeReport(_known_device(probe, host, node), problem=problem)
                self._install(host, run, report.device)
            if is_installed(host, PROBE):
                start_oneshot(host, PROBE, run)
        return attrs.evolve(report, boot=run.changes.of_boot)

    def _carry_out(self, host: Host, node: ProbeNode, scope: CancelScope, run: Run) -> ProbeReport:
        probe = self.config.load_balancer_probe

        def look(told: Evidence | None) -> tuple[ProbeReport, str | None]:
            plan = _plan_now(probe, host, node, told)
            if plan.device is not None and plan.rules_after is not None:
                with all_or_nothing() as undo:
                    # Not under the lock: the gate of a starting machine waits for that.
                    installed = self._install_part(host, plan.device, undo)
                    with locked(host.layout.lock, scope), all_or_nothing() as own:
                        plan = _read_again(plan, node)
                        _apply(plan, node, scope, own)
                        _see_way(node, (*plan.pins.add, *plan.pins.unchanged)[0])
                run.changes |= installed | plan.pins.changes
            return plan, plan.missing

        told = _told(probe, node, scope)
        report, missing = look_until(host.routes, scope, probe.wait_seconds, lambda: look(told))
        if missing is not None and probe.required:
            # Nothing asks again at boot.
            sentence = f"{report.evidence}, but it may come, and the rules are required"
            report, missing = look(Evidence(has_ipv6=True, sentence=sentence))
        if missing is not None and report.skipped_because is None:
            raise LoadBalancerProbeError(
                f"can't rewrite the load balancer's probes: waited {probe.wait_seconds} s in vain for "
                f"{missing}; bring it up, name another as loadBalancerProbe.devices, or raise its waitSeconds"
            )
        return report

    def _install(self, host: Host, run: Run, device: str | None) -> None:
        """Only what stays for the next boot, which may go better."""
        if device is not None:
            with all_or_nothing() as undo:
                installed = self._install_part(host, device, undo)
            run.changes |= installed

    def _install_part(self, host: Host, device: str, undo: Undo) -> Changes:
        part = probe_part(device, host.layout, required=self.config.load_balancer_probe.required)
        return install_part(host, self.config.consumer, part, undo)


def _apply(plan: ProbeReport, node: ProbeNode, scope: CancelScope, undo: Undo) -> None:
    """Load the rules, see them in force, and change the routes."""
    if plan.has_new_rules:
        scope.check()
        undo.push(partial(_put_back, node, plan.rules_before))
        node.load(REMOVAL if plan.device is None else render_ruleset(plan.device))
        if node.listing(TABLE) != plan.rules_after:
            raise LoadBalancerProbeError(
                f"the nftables table ip6 {TABLE} isn't as it was loaded: somebody else changes it; look at: "
                f"nft list table ip6 {TABLE}"
            )
    # On the way back those of before come first, each in the place of what took its own.
    for pin in plan.pins.add:
        undo.push(partial(node.unpin, pin))
    for pin in plan.pins.remove:
        undo.push(partial(node.pin, pin))
    for change, pins in ((node.pin, plan.pins.add), (node.unpin, plan.pins.remove)):
        for pin in pins:
            scope.check()
            change(pin)


def _put_back(node: ProbeNode, before: str | None) -> None:
    if node.listing(TABLE) != before:
        node.load(REMOVAL + (before or ""))


def _see_way(node: ProbeNode, pin: Pin) -> None:
    """A policy rule may lead past table main, and others may have changed it meanwhile."""
    hop = node.next_hop()
    if hop is not None and (hop.dev, hop.gateway) == (pin.dev, pin.gateway):
        return
    instead = "nowhere" if hop is None else f"{'' if hop.gateway is None else f'via {hop.gateway} '}dev {hop.dev}"
    raise LoadBalancerProbeError(
        f"the pinned route doesn't win ({pin}): answers to probes would go {instead}; look at: ip -6 rule; "
        f"ip -6 route show table all {REWRITTEN_SOURCE}"
    )


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
        """Do it.

        Returns:
            What was removed; with a ``problem`` if there is no nft, so that rules may still be in force.

        Raises:
            LoadBalancerProbeError: the kernel refuses; rules and routes are as before, and so are the files.
            FileError: a file can't be removed; a later run goes on from there.
            UnitError: systemd refuses; likewise.
        """
        host = self.host or Host()
        with alone(host, scope, is_wanting=False) as run:
            return _remove(host, self.node, scope, run)


def _plan_removal(host: Host, node: ProbeNode | None) -> ProbeReport:
    """What to take back of rules and routes."""
    if host.is_image:
        return ProbeReport()
    node = given_or_real(host, node, LinuxProbeNode)
    before = problem = None
    try:
        before = node.listing(TABLE)
    except LoadBalancerProbeError as error:
        if error.errno != errnos.ENOENT:
            raise
        # Nobody sees whether rules that were loaded are in force still.
        problem = f"{error}; then again: hostrouting lb-probe remove, as rules in force stay until that or a boot"
    return ProbeReport(rules_before=before, pins=plan_pins(None, node.pins()), problem=problem)


def _remove(host: Host, node: ProbeNode | None, scope: CancelScope, run: Run) -> ProbeReport:
    # Where the kernel refuses, the files are as before too.
    plan = _take_back(host, node, scope)
    if not (plan.changed or is_installed(host, PROBE)):
        return ProbeReport(skipped_because="nothing of it is installed")
    run.changes |= plan.pins.changes
    remove_parts(host, scope, run, PROBE)
    # A script or a flush may have given the rules back meanwhile; now nobody does it any more.
    _take_back(host, node, scope)
    return attrs.evolve(plan, boot=run.changes.of_boot)


def _take_back(host: Host, node: ProbeNode | None, scope: CancelScope) -> ProbeReport:
    plan = _plan_removal(host, node)
    if plan.changed:
        with locked(host.layout.lock, scope), all_or_nothing() as undo:
            _apply(plan, given_or_real(host, node, LinuxProbeNode), scope, undo)
    return plan
