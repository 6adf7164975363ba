"""Do the load balancer's probes get through, and is anything of azure-vnet in the way?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.azure.probe.tasks import plan_next_boot, plan_probe
from hostrouting.azure.vnet.tasks import plan_stale
from hostrouting.boot import files
from hostrouting.boot.examination import Ailment, Severity
from hostrouting.boot.gate import FLUSHERS, PROBE
from hostrouting.doctor.patient import read_folder
from hostrouting.model.errors import LoadBalancerProbeError
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.azure.config import HostNetworking
    from hostrouting.azure.probe.plan import ProbePlan
    from hostrouting.boot.installation import BootPlan
    from hostrouting.doctor.patient import Patient

__all__ = ["azure_vnet", "flushes", "probes"]


# AgentBaker's ipv6_nftables. Of two tables in one hook the first has its way.
_OPEN_TABLE = "azureSLBProbe"
_OTHER_RULES = Ailment(
    "other-probe-rules",
    f"nftables table ip6 {_OPEN_TABLE}",
    "AgentBaker's rules are in force too: by them pods can open connections to the fabric's address, and MLD queries "
    "and redirects of the balancer are lost",
    f"systemctl disable --now ipv6_nftables.service; nft delete table ip6 {_OPEN_TABLE}",
    Severity.RISK,
)


def probes(patient: Patient) -> Iterator[Ailment]:
    """Rules, route and what is installed for the next boot are those that are asked for."""
    networking, is_installed = patient.networking, PROBE in patient.parts
    unit, apply = f"{PROBE}.service", patient.command("lb-probe apply")
    if networking is None:
        message = "this version renders no such script: it has been edited, or another version has written it"
        yield Ailment("file-differs", patient.name(patient.layout.script(PROBE)), message, apply)
        return
    probe = networking.load_balancer_probe
    if not probe.enabled:
        if is_installed:
            message = "it is installed, and CONFIG doesn't enable loadBalancerProbe"
            yield Ailment("another-config", unit, message, f"{apply} takes it back", Severity.RISK)
        return
    grave = Severity.BROKEN if probe.required else Severity.RISK
    try:
        plan = plan_probe(networking, patient.host, CancelScope())
        is_beside_others = patient.host.probe_node.listing(_OPEN_TABLE) is not None
    except LoadBalancerProbeError as error:
        yield Ailment("probes-fail", unit, str(error), f"mend that, then: {apply}", grave)
        return
    if plan.skipped_because is not None:
        return
    if plan.missing is not None:
        yield Ailment("probes-fail", unit, f"still missing is {plan.missing}", f"bring it up, then: {apply}", grave)
        return
    if not is_installed:
        message = f"it isn't installed, and this node has IPv6: {plan.evidence}"
        yield Ailment("not-installed", unit, message, apply)
        return
    yield from _in_force(plan, apply)
    if is_beside_others:
        yield _OTHER_RULES
    yield from _for_the_next_boot(patient, networking, plan_next_boot(networking, patient.host, plan), apply)


def _in_force(plan: ProbePlan, apply: str) -> Iterator[Ailment]:
    table = f"nftables table ip6 {TABLE}"
    if plan.rules_before is None:
        message = "it isn't there: probes that a pod elsewhere has to answer die"
        yield Ailment(
            "probe-rules",
            table,
            message,
            f"{apply}; somebody has flushed the ruleset: a service that does is named below",
        )
    elif plan.has_new_rules:
        yield Ailment("probe-rules", table, "somebody has changed it", apply)
    for pin in plan.pins.add:
        message = (
            "it isn't there, as after the link was down: answers of the host itself follow the default route, if any"
        )
        yield Ailment("probe-route", str(pin), message, apply, Severity.RISK)
    for pin in plan.pins.remove:
        yield Ailment("probe-route", str(pin), "nothing asks for it", apply, Severity.RISK)


def _for_the_next_boot(patient: Patient, networking: HostNetworking, boot: BootPlan, apply: str) -> Iterator[Ailment]:
    if patient.manifest.consumer != networking.consumer:
        message = f"CONFIG holds {networking.consumer} back, and what is installed {patient.manifest.consumer}"
        yield Ailment("another-config", patient.name(patient.layout.manifest), message, apply)
        return
    for change in boot.files:
        if change.before is None:
            yield Ailment("file-missing", change.path, "it isn't there", apply)
        else:
            message = "it has been edited, or was rendered from another config or by another version of hostrouting"
            yield Ailment("file-differs", change.path, message, apply)


def flushes(patient: Patient) -> Iterator[Ailment]:
    """No service flushes the ruleset without giving the rules back."""
    if PROBE not in patient.parts:
        return
    for unit in FLUSHERS:
        if patient.units.show(unit, "NeedDaemonReload")["NeedDaemonReload"] == "yes":
            message = "systemd hasn't read the drop-in by which it gives the probes' rules back"
            yield Ailment("not-reloaded", unit, message, "systemctl daemon-reload", Severity.RISK)
    services = ("/usr/lib/systemd/system", "/usr/local/lib/systemd/system", "/etc/systemd/system")
    for path, text in read_folder(patient.layout, *(f"{folder}/*.service" for folder in services)).items():
        if path.name in FLUSHERS or not _is_flushing(patient, text):
            continue
        drop_ins = read_folder(patient.layout, *(f"{folder}/{path.name}.d/*.conf" for folder in services))
        if not any(f"{PROBE}.sh rules" in drop_in for drop_in in drop_ins.values()):
            script = patient.name(patient.layout.script(PROBE))
            remedy = (
                f"have it give them back; {patient.name(patient.layout.flush_drop_in(path.name))}:\n"
                f"  [Service]\n  ExecStartPost=-+{script} rules\nthen: systemctl daemon-reload"
            )
            message = "it flushes the ruleset of nftables, and with it the probes' rules, until the next start"
            yield Ailment("flushes-rules", path.name, message, remedy, Severity.RISK)


_EXEC = re.compile(r"^Exec\w+=(.*)$", re.MULTILINE)
_NFT_FILE = re.compile(r"\bnft\b.*? (?:-f|--file) ?(/\S+)")


def _is_flushing(patient: Patient, service: str) -> bool:
    """Whether a service's commands flush the whole ruleset, by themselves or by a file that nft reads."""
    for command in _EXEC.findall(service):
        texts = [command] if re.search(r"\bnft\b", command) else []
        texts += [files.read_text(patient.layout.of(name)) or "" for name in _NFT_FILE.findall(command)]
        if any(re.search(r"^[^#]*\bflush ruleset\b", text, re.MULTILINE) for text in texts):
            return True
    return False


def azure_vnet(patient: Patient) -> Iterator[Ailment]:
    """Nothing is left of pods that azure-vnet no longer serves."""
    networking = patient.networking
    if networking is None or networking.stale_azure_vnet is None:
        return
    plan = plan_stale(networking, patient.host)
    if plan.is_unsure:
        message = f"whether azure-vnet has left nothing in a pod's way isn't known: {'; '.join(plan.notes)}"
        remedy = f"look at those by hand; {patient.command('azure-vnet plan')} lists all else"
        yield Ailment("azure-vnet-unseen", networking.stale_azure_vnet.bridge, message, remedy, Severity.UNKNOWN)
    if plan.is_empty:
        return
    first = plan.remove[0]
    many = f" (and {len(plan.remove) - 1} more)" if len(plan.remove) > 1 else ""
    yield Ailment(
        "azure-vnet-left",
        f"{first.kind} {first.what}{many}",
        f"{first.reason}; a pod that gets such an address isn't reached",
        f"{patient.command('azure-vnet plan')} lists them, {patient.command('azure-vnet clean')} removes them",
        Severity.RISK,
    )
