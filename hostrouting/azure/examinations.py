"""Do the load balancer's probes get through, and is anything of azure-vnet in the way?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hostrouting.azure.errors import LoadBalancerProbeError
from hostrouting.azure.nodes import given_or_real
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.part import installed_config
from hostrouting.azure.probe.ruleset import PROBE, TABLE
from hostrouting.azure.probe.tasks import plan_next_boot, plan_probe
from hostrouting.azure.vnet.tasks import plan_stale
from hostrouting.boot.examination import Examination, ExaminedHost, Fault, Severity, missing_tools, stale_files
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.azure.config import HostNetworking
    from hostrouting.azure.probe.plan import ProbePlan

_TOOLS = {"nft": "nftables", "unshare": "util-linux"}

# AgentBaker's ipv6_nftables. Of two tables in one hook the first has its way.
_OPEN_TABLE = "azureSLBProbe"
_OTHER_RULES = Fault(
    "other-probe-rules",
    f"nftables table ip6 {_OPEN_TABLE}",
    "AgentBaker's rules are in force too: by them pods can open connections to the fabric's address, and MLD queries "
    "and redirects of the balancer are lost",
    f"systemctl disable --now ipv6_nftables.service; nft delete table ip6 {_OPEN_TABLE}",
    Severity.RISK,
)


def examinations(config: HostNetworking | None) -> tuple[Examination, ...]:
    """What the doctor looks at besides.

    Args:
        config: what is asked for; None: what the installed part was rendered from.
    """
    return (
        Examination("probes", "the load balancer's probes are rewritten as asked", partial(_probes, config), False),
        Examination("azure-vnet", "azure-vnet has left nothing in a pod's way", partial(_azure_vnet, config), False),
    )


def _probes(config: HostNetworking | None, examined: ExaminedHost) -> Iterator[Fault]:
    """Rules, route and what is installed for the next boot are those that are asked for."""
    networking = installed_config(examined.manifest) if config is None else config
    is_installed = PROBE in examined.manifest.parts
    yield from stale_files(examined, PROBE)
    if is_installed:
        yield from missing_tools(examined, _TOOLS, "its script and the rules")
    if networking.load_balancer_probe.enabled:
        yield from _wanted_probes(examined, networking)
    elif is_installed:
        message = "it is installed, and CONFIG doesn't enable loadBalancerProbe"
        remedy = f"{examined.command('lb-probe apply')} takes it back"
        yield Fault("another-config", f"{PROBE}.service", message, remedy, Severity.RISK)


def _wanted_probes(examined: ExaminedHost, networking: HostNetworking) -> Iterator[Fault]:
    unit, apply = f"{PROBE}.service", examined.command("lb-probe apply")
    try:
        node = given_or_real(examined.host, None, LinuxProbeNode)
        plan = plan_probe(networking, examined.host, CancelScope(), node=node)
        is_beside_others = node.listing(_OPEN_TABLE) is not None
        if plan.missing is not None and plan.skipped_because is None:
            raise LoadBalancerProbeError(f"the rules can't be there without {plan.missing}")
    except LoadBalancerProbeError as error:
        grave = Severity.BROKEN if networking.load_balancer_probe.required else Severity.RISK
        yield Fault("probes-fail", unit, str(error), f"mend that, then: {apply}", grave)
        return
    if plan.skipped_because is not None:
        return
    if PROBE not in examined.manifest.parts:
        yield Fault("not-installed", unit, f"it isn't installed, and this node has IPv6: {plan.evidence}", apply)
        return
    yield from _in_force(plan, apply)
    if is_beside_others:
        yield _OTHER_RULES
    if examined.manifest.consumer != networking.consumer:
        message = f"CONFIG holds {networking.consumer} back, and what is installed {examined.manifest.consumer}"
        yield Fault("another-config", examined.layout.relative(examined.layout.manifest), message, apply)
        return
    for change in plan_next_boot(networking, examined.host, plan).files:
        message = "it isn't there, has been edited, or was rendered from another config or by another version"
        yield Fault("file-missing" if change.before is None else "file-differs", change.path, message, apply)


def _in_force(plan: ProbePlan, apply: str) -> Iterator[Fault]:
    if plan.has_new_rules:
        message = "somebody has changed it, or flushed the ruleset: probes that a pod elsewhere has to answer die"
        yield Fault("probe-rules", f"nftables table ip6 {TABLE}", message, apply)
    for pin in plan.pins.add:
        message = "it isn't there, as after the link was down: the host's own answers follow the default route, if any"
        yield Fault("probe-route", str(pin), message, apply, Severity.RISK)
    for pin in plan.pins.remove:
        yield Fault("probe-route", str(pin), "nothing asks for it", apply, Severity.RISK)


def _azure_vnet(config: HostNetworking | None, examined: ExaminedHost) -> Iterator[Fault]:
    """Nothing is left of pods that azure-vnet no longer serves; what is installed doesn't ask for that."""
    if config is None or config.stale_azure_vnet is None:
        return
    plan = plan_stale(config, examined.host)
    if plan.is_unsure:
        message = f"can't tell whether azure-vnet has left nothing in a pod's way: {'; '.join(plan.notes)}"
        remedy = f"look at those by hand; {examined.command('azure-vnet plan')} lists all else"
        yield Fault("azure-vnet-unseen", config.stale_azure_vnet.bridge, message, remedy, Severity.UNKNOWN)
    if plan.is_empty:
        return
    first = plan.remove[0]
    many = f" (and {len(plan.remove) - 1} more)" if len(plan.remove) > 1 else ""
    yield Fault(
        "azure-vnet-left",
        f"{first.kind} {first.what}{many}",
        f"{first.reason}; a pod that gets such an address isn't reached",
        f"{examined.command('azure-vnet plan')} lists them, {examined.command('azure-vnet clean')} removes them",
        Severity.RISK,
    )
