"""What the commands of host routing get from its neighbours; the only door between the two."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.azure.config import HostNetworking
from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.part import render_script
from hostrouting.azure.probe.ruleset import PROBE
from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe, plan_probe
from hostrouting.boot.files import alone, read_text
from hostrouting.boot.host import Host
from hostrouting.boot.installation import is_installed
from hostrouting.boot.manifest import Manifest
from hostrouting.cli.changes import routes_text
from hostrouting.cli.options import read_section
from phases import CancelScope, run_child

if TYPE_CHECKING:
    from hostrouting.boot.examination import Examination
    from hostrouting.cli.preview import NextStart


def as_probes_allow(start: NextStart, host: Host) -> NextStart:
    """The next start, held back also where the rules for probes are required and can't be had."""
    if not start.is_admitted:
        return start
    try:
        reason = _why_probes_hold(host)
    except LoadBalancerProbeError as error:
        if error.is_not_permitted:
            unseen = "only root can see whether the required rules for the load balancer's probes can be installed"
            return attrs.evolve(start, reason=f"{start.reason}; {unseen}")
        reason = str(error)
    return start if reason is None else attrs.evolve(start, is_admitted=False, reason=reason)


def _why_probes_hold(host: Host) -> str | None:
    """Why the installed script of the probes would hold the consumer back; None: it would not."""
    installed = Manifest.load(host.layout).read_as(HostNetworking.from_mapping)
    probe, script = installed.load_balancer_probe, host.layout.script(PROBE)
    if not probe.required:
        return None
    if read_text(script) != render_script(probe.devices[0], required=True):
        return f"{host.layout.relative(script)} isn't as hostrouting writes it: see hostrouting doctor"
    missing = plan_probe(installed, host, CancelScope()).missing
    return None if missing is None else f"the load balancer's probes need {missing}"


def examinations(options: argparse.Namespace, host: Host, *, has_config: bool) -> tuple[Examination, ...]:
    """What the doctor looks at besides."""
    from hostrouting.azure.examinations import examinations

    return examinations(read_section(options, host, None, HostNetworking.from_mapping)[1] if has_config else None)


def remove_all(host: Host, scope: CancelScope) -> tuple[str, dict[str, Any]]:
    """Take back all that was installed, for probes too; what was removed, for people and for programs."""
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
