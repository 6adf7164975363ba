"""Doctor checks for the load balancer's probes and for azure-vnet's leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostrouting.azure.config import HostNetworking
from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.ruleset import PROBE, TABLE
from hostrouting.azure.probe.tasks import plan_probe
from hostrouting.azure.vnet.tasks import plan_stale
from hostrouting.doctor.checks import (
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
    """Return the plug-in's doctor checks.

    Args:
        config: the config to compare with, or None for the installed one, which has no settings for
            azure-vnet.
    """
    return (
        DoctorCheck(
            "probes", "the probes are rewritten as configured", partial(_probes, config), False
        ),
        DoctorCheck(
            "azure-vnet",
            "azure-vnet has left nothing that affects a pod",
            partial(_azure_vnet, config),
            False,
        ),
    )


def _probes(config: HostNetworking | None, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the rules, the route and the boot files match the config."""
    networking = (
        examined.manifest.read_as(HostNetworking.from_mapping) if config is None else config
    )
    probe, apply = networking.load_balancer_probe, examined.command("lb-probe apply")
    is_installed = PROBE in examined.manifest.parts
    yield from stale_files(examined, PROBE)
    if is_installed:
        yield from missing_tools(examined, {"nft": "nftables"}, "the rules")
    elif not probe.enabled:
        return
    try:
        plan = plan_probe(networking, host=examined.host, scope=examined.scope)
    except LoadBalancerProbeError as error:
        yield DoctorFinding(
            "probes-fail", f"{PROBE}.service", str(error), f"fix that, then: {apply}", Severity.RISK
        )
        return
    files, rules = plan.changes.files, [f"nftables table ip6 {TABLE}"] if plan.rules else []
    changes = (*files, *plan.changes.units, *plan.changes.routes)
    if differing := [*rules, *(str(change.what) for change in changes)]:
        message = (
            "it isn't as configured; without the rules, probes that a pod has to answer are lost"
        )
        hint = f"{examined.command('lb-probe plan')} shows the difference, {apply} fixes it"
        # Without this route, the host's own replies fall back to the default route.
        grave = Severity.BROKEN if probe.enabled and (rules or files) else Severity.RISK
        yield DoctorFinding(
            "probes-differ", shortened(differing, ", ", _NAMED), message, hint, grave
        )


def _azure_vnet(config: HostNetworking | None, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check for leftovers of pods that azure-vnet no longer serves."""
    if config is None or (stale := config.stale_azure_vnet) is None:
        return
    plan = plan_stale(config, host=examined.host)
    if plan.is_unsure:
        message = f"can't tell whether azure-vnet has left rules that affect a pod: {'; '.join(plan.notes)}"
        hint = f"check those by hand; {examined.command('azure-vnet plan')} lists everything else"
        yield DoctorFinding("azure-vnet-unseen", stale.bridge, message, hint, Severity.UNKNOWN)
    if not plan.removed:
        return
    left = shortened([f"{item.kind} {item.what}" for item in plan.removed], ", ", 1)
    message = f"{plan.removed[0].reason}; a pod that gets such an address isn't reached"
    hint = f"{examined.command('azure-vnet plan')} lists them, {examined.command('azure-vnet clean')} removes them"
    yield DoctorFinding("azure-vnet-left", left, message, hint, Severity.RISK)


# These checks compare with the installed config, and ``checks(config)`` with a given one. The
# installed config has no ``staleAzureVnet``, so the second check then finds nothing.
CHECKS = checks(None)
