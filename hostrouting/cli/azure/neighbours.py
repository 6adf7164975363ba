"""What the commands of the core get from the Azure plug-in; nothing else connects the two."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.config import HostNetworking
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe
from hostrouting.boot.files import alone
from hostrouting.boot.host import Host
from hostrouting.boot.installation import is_installed
from hostrouting.cli.changes import routes_text
from hostrouting.cli.options import read_section
from phases import CancelScope, run_child

if TYPE_CHECKING:
    from hostrouting.boot.examination import Examination


def examinations(options: argparse.Namespace, host: Host, *, has_config: bool) -> tuple[Examination, ...]:
    """Return what the doctor looks at besides."""
    from hostrouting.azure.examinations import examinations

    return examinations(read_section(options, host, None, HostNetworking.from_mapping)[1] if has_config else None)


def remove_all(host: Host, scope: CancelScope) -> tuple[str, dict[str, Any]]:
    """Remove all that was installed, also for probes, and return what went as text and as JSON."""
    from hostrouting.cli.azure.probe import report_text
    from hostrouting.tasks.configure import RemoveHostRouting

    with alone(host, scope, is_wanting=False):  # so that a failure tells all that was removed before it
        probe = run_child(RemoveLoadBalancerProbe(host=host), scope) if is_installed(host, PROBE) else None
        routes = run_child(RemoveHostRouting(host=host), scope)
    if probe is None:
        return routes_text(routes), routes.to_json()
    text = "\n".join([report_text(probe), *([routes_text(routes)] if routes.changes else [])])
    document = attrs.evolve(routes, changes=probe.changes | routes.changes).to_json()
    return text, document | {"changed": probe.changed or bool(routes.changes), "loadBalancerProbe": probe.to_json()}
