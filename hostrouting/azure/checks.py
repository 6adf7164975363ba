"""Doctor checks for the load balancer's probes and for azure-vnet's leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostrouting.azure.config import HostNetworking
from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.ruleset import PROBE, TABLE
from hostrouting.azure.probe.tasks import ProbeReport, plan_probe
from hostrouting.azure.vnet.tasks import plan_stale
from hostrouting.doctor.check_types import (
    DoctorCheck,
    DoctorFinding,
    ExaminedHost,
    Severity,
    missing_tools,
    stale_files,
)
from hostrouting.model.text import shortened

_NAMED = 3


def checks(config: HostNetworking | None) -> tuple[DoctorCheck, ...]:
    """Return the plug-ins' doctor checks.

    Args:
        config: the config to compare with, or None for the installed one. The installed config has
            no settings for azure-vnet.
    """
    probes = DoctorCheck(
        "probes",
        "probes are rewritten, if that is configured",
        partial(_probes, config),
        is_of_the_installed=False,
    )
    leftovers = DoctorCheck(
        "azure-vnet",
        "azure-vnet has left nothing that affects a pod",
        partial(_azure_vnet, config),
        is_of_the_installed=False,
    )
    return probes, leftovers


def _probes(config: HostNetworking | None, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the rules, the route and the boot files match the config."""
    if config is None:
        config = examined.manifest.read_as(HostNetworking.from_mapping)
    yield from stale_files(examined, PROBE)
    if PROBE in examined.manifest.parts:
        yield from missing_tools(examined, {"nft": "nftables"}, "the rules")
    elif not config.load_balancer_probe.enabled:
        return
    try:
        plan = plan_probe(config, host=examined.host, scope=examined.scope)
    except LoadBalancerProbeError as error:
        hint = f"fix that, then: {examined.command('lb-probe apply')}"
        unit = f"{PROBE}.service"
        yield DoctorFinding("probes-fail", unit, error.clause, hint, Severity.RISK)
        return
    yield from _differing_probes(plan, config, examined)


def _differing_probes(
    plan: ProbeReport,
    config: HostNetworking,
    examined: ExaminedHost,
) -> Iterator[DoctorFinding]:
    rules = [f"nftables table ip6 {TABLE}"] if plan.rules else []
    changes = (*plan.changes.files, *plan.changes.units, *plan.changes.routes)
    differing = [*rules, *(str(change.what) for change in changes)]
    if not differing:
        return
    # If only the route is missing, replies take the default route, so nothing is broken yet.
    is_broken = config.load_balancer_probe.enabled and bool(rules or plan.changes.files)
    yield DoctorFinding(
        "probes-differ",
        shortened(differing, ", ", _NAMED),
        "it isn't as configured; without the rules, probes that a pod has to answer are lost",
        f"{examined.command('lb-probe plan')} shows the difference, "
        f"{examined.command('lb-probe apply')} fixes it",
        Severity.BROKEN if is_broken else Severity.RISK,
    )


def _azure_vnet(config: HostNetworking | None, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check for leftovers of pods that azure-vnet no longer serves."""
    if config is None or (stale := config.stale_azure_vnet) is None:
        return
    plan = plan_stale(config, host=examined.host)
    lists = f"{examined.command('azure-vnet plan')} lists"
    if plan.is_unsure:
        notes = "; ".join(plan.notes)
        yield DoctorFinding(
            "azure-vnet-unseen",
            stale.bridge,
            f"can't tell whether azure-vnet has left rules that affect a pod: {notes}",
            f"check those by hand; {lists} everything else",
            Severity.UNKNOWN,
        )
    if plan.removed:
        yield DoctorFinding(
            "azure-vnet-left",
            shortened([f"{item.kind} {item.what}" for item in plan.removed], ", ", 1),
            f"{plan.removed[0].reason}; a pod that gets such an address isn't reached",
            f"{lists} them, {examined.command('azure-vnet clean')} removes them",
            Severity.RISK,
        )


# The checks for the installed config. The check for azure-vnet finds nothing, because an installed
# config has no ``staleAzureVnet``.
CHECKS = checks(None)
