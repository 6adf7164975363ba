"""Run ``hostrouting lb-probe`` and print the results."""

from __future__ import annotations

import argparse
from functools import partial

from hostrouting.azure.config import SECTION, HostNetworking
from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.azure.probe.tasks import (
    ConfigureLoadBalancerProbe,
    ProbeReport,
    RemoveLoadBalancerProbe,
    plan_probe,
)
from hostrouting.boot.host import Host
from hostrouting.cli.changes import NOTHING, boot_lines, changes_lines
from hostrouting.cli.exit_codes import EXIT_PLAN_CHANGES
from hostrouting.cli.inputs import read_section
from hostrouting.cli.output import bad, good
from hostrouting.cli.running import Result, run_function, run_task
from hostrouting.model.changes import Changes
from hostrouting.model.text import clean


def apply(options: argparse.Namespace, host: Host) -> Result:
    """Rewrite the health probes, now and at every boot.

    The command loads the rules in one nftables transaction. It also adds a route to the rewritten
    address. So even if the default route changes, the host's replies still reach the load balancer.
    It installs a unit that loads the rules at every boot before the node starts. If
    nftables.service or nftables-flush.service flushes the ruleset, the rules are restored
    immediately. Running the command again reloads the same rules without losing a probe. If the
    command fails, it rolls back its changes.

      hostrouting lb-probe apply /etc/aks-flex-node/config.json
      hostrouting lb-probe apply --root /mnt/image config.json      takes effect at the image's first boot
    """  # noqa: E501
    _, config = read_section(options, host, SECTION, HostNetworking.from_mapping)
    host = options.image or host
    result = run_task(ConfigureLoadBalancerProbe(config, host=host))
    return Result(result.to_json, lambda: report_text(result))


def plan(options: argparse.Namespace, host: Host) -> Result:
    """Show what apply would change, without changing anything.

    The command shows changes to the rules, the route, files (with -v as diffs) and units. It exits
    with 2 if anything would change, and with 0 otherwise.
    """
    _, config = read_section(options, host, SECTION, HostNetworking.from_mapping)
    plan = run_function("plan", lambda scope: plan_probe(config, host=host, scope=scope))
    code = EXIT_PLAN_CHANGES if plan.changed else 0
    return Result(plan.to_json, partial(plan_text, plan, is_verbose=options.verbose), code)


def remove(_options: argparse.Namespace, host: Host) -> Result:
    """Remove everything that lb-probe apply installed.

    The command removes the rules, the route, the files and the units. It needs no config. The
    command hostrouting remove removes these and everything else.
    """
    result = run_task(RemoveLoadBalancerProbe(host=host))
    return Result(result.to_json, lambda: report_text(result))


# --- as text --------------------------------------------------------------------------------------


_TABLE = f"nftables table ip6 {TABLE}"


def plan_text(plan: ProbeReport, *, is_verbose: bool) -> str:
    """Return the planned changes to the rules, the route, files and units."""
    lines = _about(plan)
    if plan.rules is not None:
        lines.append(good(f"+ {_TABLE}") if plan.rules == "loaded" else bad(f"- {_TABLE}"))
    lines += changes_lines(Changes(plan.changes.routes))
    lines += boot_lines(plan.changes, is_verbose=is_verbose)
    return "\n".join(lines if plan.changed else [*lines, NOTHING])


def report_text(report: ProbeReport) -> str:
    """Return one line per change; if nothing changed, a line that says so."""
    lines = _about(report)
    if report.rules is not None:
        lines.append(good(f"{_TABLE}: {report.rules}"))
    lines += changes_lines(report.changes)
    return "\n".join(lines if report.changed else [*lines, NOTHING])


def _about(report: ProbeReport) -> list[str]:
    told = (("skipped", report.skipped_because), ("probes arrive through", report.device))
    return [f"{word}: {clean(said)}" for word, said in told if said is not None]
