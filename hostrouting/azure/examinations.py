"""Do the load balancer's probes get through, and is anything of azure-vnet in the way?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.azure import nodes
from hostrouting.azure.errors import LoadBalancerProbeError
from hostrouting.azure.probe.part import FLUSHERS, flush_drop_in, installed_config
from hostrouting.azure.probe.ruleset import PROBE, TABLE
from hostrouting.azure.probe.tasks import plan_next_boot, plan_probe
from hostrouting.azure.vnet.tasks import plan_stale
from hostrouting.boot import files
from hostrouting.boot.examination import Examination, Fault, Severity, missing_tools, read_folder, stale_files
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.azure.config import HostNetworking
    from hostrouting.azure.probe.plan import ProbePlan
    from hostrouting.azure.probe.port import ProbeNode
    from hostrouting.azure.vnet.port import BridgeNode
    from hostrouting.boot.examination import ExaminedHost
    from hostrouting.boot.preview import BootPlan

__all__ = ["examinations"]


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


def examinations(
    config: HostNetworking | None, *, probe_node: ProbeNode | None = None, bridge_node: BridgeNode | None = None
) -> tuple[Examination, ...]:
    """What the doctor looks at besides.

    Args:
        config: what is asked for; None: what the installed part was rendered from.
        probe_node: the host's IPv6 side; None: this kernel's.
        bridge_node: its bridge's side; None: this kernel's.
    """
    return (
        Examination(
            "probes",
            "the load balancer's probes are rewritten as asked",
            lambda examined: _probes(examined, _asked(config, examined), probe_node),
            is_of_the_installed=False,
        ),
        Examination(
            "flushes", "whoever flushes the ruleset gives the probes' rules back", _flushes, is_of_the_installed=False
        ),
        Examination(
            "azure-vnet",
            "azure-vnet has left nothing in a pod's way",
            lambda examined: _azure_vnet(examined, _asked(config, examined), bridge_node),
            is_of_the_installed=False,
        ),
    )


def _asked(config: HostNetworking | None, examined: ExaminedHost) -> HostNetworking:
    """What the host should be like."""
    return installed_config(examined.manifest) if config is None else config


def _probes(examined: ExaminedHost, networking: HostNetworking, node: ProbeNode | None) -> Iterator[Fault]:
    """Rules, route and what is installed for the next boot are those that are asked for."""
    is_installed = PROBE in examined.manifest.parts
    yield from stale_files(examined, PROBE)
    if is_installed:
        yield from missing_tools(examined, _TOOLS, "its script and the rules")
    unit, apply = f"{PROBE}.service", examined.command("lb-probe apply")
    probe = networking.load_balancer_probe
    if not probe.enabled:
        if is_installed:
            message = "it is installed, and CONFIG doesn't enable loadBalancerProbe"
            yield Fault("another-config", unit, message, f"{apply} takes it back", Severity.RISK)
        return
    grave = Severity.BROKEN if probe.required else Severity.RISK
    try:
        node = nodes.probe_node(examined.host, node)
        plan = plan_probe(networking, examined.host, CancelScope(), node=node)
        is_beside_others = node.listing(_OPEN_TABLE) is not None
    except LoadBalancerProbeError as error:
        yield Fault("probes-fail", unit, str(error), f"mend that, then: {apply}", grave)
        return
    if plan.skipped_because is not None:
        return
    if plan.missing is not None:
        yield Fault("probes-fail", unit, f"still missing is {plan.missing}", f"bring it up, then: {apply}", grave)
        return
    if not is_installed:
        message = f"it isn't installed, and this node has IPv6: {plan.evidence}"
        yield Fault("not-installed", unit, message, apply)
        return
    yield from _in_force(plan, apply)
    if is_beside_others:
        yield _OTHER_RULES
    yield from _for_the_next_boot(examined, networking, plan_next_boot(networking, examined.host, plan), apply)


def _in_force(plan: ProbePlan, apply: str) -> Iterator[Fault]:
    table = f"nftables table ip6 {TABLE}"
    if plan.rules_before is None:
        message = "it isn't there: probes that a pod elsewhere has to answer die"
        yield Fault(
            "probe-rules",
            table,
            message,
            f"{apply}; somebody has flushed the ruleset: a service that does is named below",
        )
    elif plan.has_new_rules:
        yield Fault("probe-rules", table, "somebody has changed it", apply)
    for pin in plan.pins.add:
        message = (
            "it isn't there, as after the link was down: answers of the host itself follow the default route, if any"
        )
        yield Fault("probe-route", str(pin), message, apply, Severity.RISK)
    for pin in plan.pins.remove:
        yield Fault("probe-route", str(pin), "nothing asks for it", apply, Severity.RISK)


def _for_the_next_boot(
    examined: ExaminedHost, networking: HostNetworking, boot: BootPlan, apply: str
) -> Iterator[Fault]:
    if examined.manifest.consumer != networking.consumer:
        message = f"CONFIG holds {networking.consumer} back, and what is installed {examined.manifest.consumer}"
        yield Fault("another-config", examined.name(examined.layout.manifest), message, apply)
        return
    for change in boot.files:
        if change.before is None:
            yield Fault("file-missing", change.path, "it isn't there", apply)
        else:
            message = "it has been edited, or was rendered from another config or by another version of hostrouting"
            yield Fault("file-differs", change.path, message, apply)


def _flushes(examined: ExaminedHost) -> Iterator[Fault]:
    """No service flushes the ruleset without giving the rules back."""
    if PROBE not in examined.manifest.parts:
        return
    for unit in FLUSHERS:
        if examined.units.show(unit, "NeedDaemonReload")["NeedDaemonReload"] == "yes":
            message = "systemd hasn't read the drop-in by which it gives the probes' rules back"
            yield Fault("not-reloaded", unit, message, "systemctl daemon-reload", Severity.RISK)
    services = ("/usr/lib/systemd/system", "/usr/local/lib/systemd/system", "/etc/systemd/system")
    for path, text in read_folder(examined.layout, *(f"{folder}/*.service" for folder in services)).items():
        if path.name in FLUSHERS or not _is_flushing(examined, text):
            continue
        drop_ins = read_folder(examined.layout, *(f"{folder}/{path.name}.d/*.conf" for folder in services))
        if not any(f"{PROBE}.sh rules" in drop_in for drop_in in drop_ins.values()):
            script = examined.name(examined.layout.script(PROBE))
            remedy = (
                f"have it give them back; {examined.name(flush_drop_in(examined.layout, path.name))}:\n"
                f"  [Service]\n  ExecStartPost=-+{script} rules\nthen: systemctl daemon-reload"
            )
            message = "it flushes the ruleset of nftables, and with it the probes' rules, until the next start"
            yield Fault("flushes-rules", path.name, message, remedy, Severity.RISK)


_EXEC = re.compile(r"^Exec\w+=(.*)$", re.MULTILINE)
_NFT_FILE = re.compile(r"\bnft\b.*? (?:-f|--file) ?(/\S+)")


def _is_flushing(examined: ExaminedHost, service: str) -> bool:
    """Whether a service's commands flush the whole ruleset, by themselves or by a file that nft reads."""
    for command in _EXEC.findall(service):
        texts = [command] if re.search(r"\bnft\b", command) else []
        texts += [files.read_text(examined.layout.of(name)) or "" for name in _NFT_FILE.findall(command)]
        if any(re.search(r"^[^#]*\bflush ruleset\b", text, re.MULTILINE) for text in texts):
            return True
    return False


def _azure_vnet(examined: ExaminedHost, networking: HostNetworking, node: BridgeNode | None) -> Iterator[Fault]:
    """Nothing is left of pods that azure-vnet no longer serves."""
    if networking.stale_azure_vnet is None:
        return
    plan = plan_stale(networking, examined.host, node=node)
    if plan.is_unsure:
        message = f"whether azure-vnet has left nothing in a pod's way isn't known: {'; '.join(plan.notes)}"
        remedy = f"look at those by hand; {examined.command('azure-vnet plan')} lists all else"
        yield Fault("azure-vnet-unseen", networking.stale_azure_vnet.bridge, message, remedy, Severity.UNKNOWN)
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
