"""The functions through which the core's commands use the Azure plug-in."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.checks import checks as checks_of
from hostrouting.azure.config import SECTION, HostNetworking
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe
from hostrouting.boot.host import Host
from hostrouting.boot.installation import is_installed
from hostrouting.cli.inputs import read_section
from hostrouting.config.routing import SECTION as HOST_ROUTING
from hostrouting.model.changes import Changes
from hostrouting.model.errors import ConfigError, HostRoutingError
from hostrouting.routes.plan import RoutesReport
from phases import CancelScope, run_child

if TYPE_CHECKING:
    from hostrouting.doctor.check_types import DoctorCheck


def checks(options: argparse.Namespace, host: Host, *, has_config: bool) -> tuple[DoctorCheck, ...]:
    """Return the plug-in's doctor checks. If there is a CONFIG, they compare the host with it."""
    config: HostNetworking | None = None
    if has_config:
        _, config = read_section(options, host, None, HostNetworking.from_mapping)
    return checks_of(config)


def our_sections(options: argparse.Namespace, host: Host) -> dict[str, Any]:
    """Return hostrouting's own sections of CONFIG, unchanged.

    Raises:
        ConfigError: a section is invalid, or CONFIG has none of our sections.
    """
    document, _ = read_section(options, host, None, HostNetworking.from_mapping)
    keys = HOST_ROUTING, SECTION
    sections = {key: document[key] for key in keys if document.get(key) is not None}
    if not sections:
        raise ConfigError(
            [(options.config, f"has none of the keys {', '.join(keys)}: there is nothing to set")]
        )
    return sections


def remove_all(host: Host, scope: CancelScope) -> RoutesReport:
    """Remove everything, including the probe rules, and return all changes."""
    from hostrouting.tasks.configure import RemoveHostRouting

    host.refuse_another_network("can't remove what is installed")
    removed = Changes()
    if is_installed(host, PROBE):
        removed = run_child(RemoveLoadBalancerProbe(host=host), scope).changes
    try:
        report = run_child(RemoveHostRouting(host=host), scope)
    except HostRoutingError as error:
        error.changes = removed | error.changes
        raise
    return attrs.evolve(report, changes=removed | report.changes)
