"""The Azure plug-in's part in the core's commands; this module is the only connection between the two."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.config import SECTION, HostNetworking
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe
from hostrouting.boot.host import Host
from hostrouting.boot.installation import is_installed
from hostrouting.cli.changes import changed_text
from hostrouting.cli.options import read_section
from hostrouting.config.routing import SECTION as HOST_ROUTING
from hostrouting.model.changes import Changes
from hostrouting.model.errors import ConfigError, HostRoutingError
from phases import CancelScope, run_child

if TYPE_CHECKING:
    from hostrouting.doctor.checks import DoctorCheck


def checks(options: argparse.Namespace, host: Host, *, has_config: bool) -> tuple[DoctorCheck, ...]:
    """Return the plug-in's checks for the doctor, with its config if CONFIG exists."""
    from hostrouting.azure.checks import checks

    return checks(read_section(options, host, None, HostNetworking.from_mapping)[1] if has_config else None)


def our_sections(options: argparse.Namespace, host: Host) -> dict[str, Any]:
    """Return CONFIG's sections that belong to hostrouting, unchanged.

    Raises:
        ConfigError: a section breaks its rules, or CONFIG has none of our sections.
    """
    document, _ = read_section(options, host, None, HostNetworking.from_mapping)
    keys = HOST_ROUTING, SECTION
    sections = {key: document[key] for key in keys if document.get(key) is not None}
    if not sections:
        raise ConfigError([(options.config, f"has none of the keys {', '.join(keys)}: there is nothing to set")])
    return sections


def remove_all(host: Host, scope: CancelScope) -> tuple[str, dict[str, Any]]:
    """Remove the whole installation with that of the probes, and return the changes as text and as JSON."""
    from hostrouting.cli.azure.probe import report_text
    from hostrouting.tasks.configure import RemoveHostRouting

    probe = run_child(RemoveLoadBalancerProbe(host=host), scope) if is_installed(host, PROBE) else None
    try:
        routes = run_child(RemoveHostRouting(host=host), scope)
    except HostRoutingError as error:
        error.changes = (probe.changes if probe else Changes()) | error.changes
        raise
    if probe is None:
        return changed_text(routes.plan, routes.changes), routes.to_json()
    text = "\n".join([report_text(probe), *([changed_text(routes.plan, routes.changes)] if routes.changes else [])])
    document = attrs.evolve(routes, changes=probe.changes | routes.changes).to_json()
    return text, document | {"changed": probe.changed or bool(routes.changes), "loadBalancerProbe": probe.to_json()}
