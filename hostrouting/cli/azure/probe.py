"""``hostrouting lb-probe``: a few lines over the tasks, and what became of them as text for people."""

from __future__ import annotations

import argparse

import phases
from hostrouting.azure.config import SECTION, HostNetworking
from hostrouting.azure.probe.plan import ProbeReport
from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe, RemoveLoadBalancerProbe, plan_probe
from hostrouting.boot.host import Host
from hostrouting.cli.changes import NOTHING, boot_lines, changes_lines, diff_lines
from hostrouting.cli.options import read_section
from hostrouting.cli.output import bad, dim, good
from hostrouting.cli.running import EXIT_PLAN_CHANGES, run_task, say_as_asked
from hostrouting.model.changes import Change
from hostrouting.model.text import clean


def apply(options: argparse.Namespace, host: Host) -> int:
    """Rewrite the probes, now and at every boot.

    The command loads the rules in one nftables transaction, sees that they are in force, and adds a route to the
    rewritten address, so that answers of the host itself find back without a default route. For every boot it installs
    a script, its unit and a line in the gate. If nftables.service or nftables-flush.service flushes the ruleset, the
    rules come back at once. A second run changes nothing and keeps the counters. A node without IPv6 stays as it is,
    unless CONFIG says "required": true and an address may come later. A failure is an error if the rules are required;
    otherwise the command reports it, and the node starts.

      hostrouting lb-probe apply /etc/aks-flex-node/config.json
      hostrouting lb-probe apply --root /mnt/image config.json      with "devices"; holds from the image's first boot
    """
    _, config = read_section(options, host, SECTION, HostNetworking.from_mapping)
    if options.root is not None:
        host = Host.image(options.root)
    result = run_task(ConfigureLoadBalancerProbe(config, host=host))
    say_as_asked(options, result.to_json, lambda: report_text(result))
    return 0


def plan(options: argparse.Namespace, host: Host) -> int:
    """Show what apply would change, and change nothing.

    The command shows the rules as a diff of nft's own listings, the route with + and -, files as diffs, and units. It
    exits with 2 if there is anything to change, and with 0 if not.
    """
    _, config = read_section(options, host, SECTION, HostNetworking.from_mapping)
    plan = run_task(phases.task("plan")(lambda scope: plan_probe(config, host, scope)))
    wait_seconds = config.load_balancer_probe.wait_seconds
    say_as_asked(options, plan.to_json, lambda: plan_text(plan, wait_seconds=wait_seconds))
    is_waiting = plan.missing is not None and plan.skipped_because is None
    return EXIT_PLAN_CHANGES if plan.changed or is_waiting else 0


def remove(options: argparse.Namespace, host: Host) -> int:
    """Take back all that was installed for probes.

    Rules, route, files and units. Needs no config. hostrouting remove does it too, with everything else.
    """
    result = run_task(RemoveLoadBalancerProbe(host=host))
    say_as_asked(options, result.to_json, lambda: report_text(result))
    return 0


# --- as text ---------------------------------------------------------------------------------------------------------


_TABLE = f"nftables table ip6 {TABLE}"


def plan_text(plan: ProbeReport, *, wait_seconds: int) -> str:
    """What would become of rules, routes, files and units."""
    lines = _reason_lines(plan)
    if plan.missing is not None:
        lines.append(f"would wait up to {wait_seconds} s for {clean(plan.missing)}")
    if plan.has_new_rules:
        lines += diff_lines(Change(_TABLE, "replaced", before=plan.rules_before, after=plan.rules_after))
    elif plan.rules_after is not None:
        lines.append(dim(f"= {_TABLE}"))
    lines += [good(f"+ {clean(str(pin))}") for pin in plan.pins.add]
    lines += [bad(f"- {clean(str(pin))}") for pin in plan.pins.remove]
    lines += [dim(f"= {clean(str(pin))}") for pin in plan.pins.unchanged] + boot_lines(plan.boot)
    if not (plan.changed or plan.missing):
        lines.append(NOTHING)
    return "\n".join(lines)


def report_text(report: ProbeReport) -> str:
    """What became of the rewriting of probes, a line each; one line if nothing changed."""
    lines = _reason_lines(report)
    if report.problem is not None:
        lines += [bad(f"problem: {clean(line)}") for line in report.problem.splitlines()]
    if report.has_new_rules:
        lines.append(good(f"{_TABLE}: {'loaded' if report.device else 'removed'}"))
    lines += changes_lines(report.changes) + [dim(f"unchanged {clean(str(pin))}") for pin in report.pins.unchanged]
    if not report.changed and report.problem is None:
        lines.append(NOTHING)
    return "\n".join(lines)


def _reason_lines(about: ProbeReport) -> list[str]:
    if about.skipped_because is not None:
        return [f"skipped: {clean(about.skipped_because)}"]
    why = f"  ({clean(about.evidence)})" if about.evidence else ""
    return [f"probes come in by: {clean(about.device)}{dim(why)}"] if about.device else []
