"""Run ``hostrouting azure-vnet`` and print why each object is removed or kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from hostrouting.azure.config import SECTION, HostNetworking
from hostrouting.azure.vnet.bridge import Neighbour
from hostrouting.azure.vnet.leftovers import AzureVnetItem, AzureVnetReport
from hostrouting.azure.vnet.parse import parse_pod_rule
from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet, plan_stale
from hostrouting.boot.host import Host
from hostrouting.cli.exit_codes import EXIT_PLAN_CHANGES
from hostrouting.cli.inputs import read_section
from hostrouting.cli.output import bad, dim, good
from hostrouting.cli.running import Result, run_task
from hostrouting.model.errors import ConfigError
from hostrouting.model.text import clean


def _load(options: argparse.Namespace, host: Host) -> HostNetworking:
    """Read the settings.

    CIDRs are required, because the command only touches objects inside them.
    """
    _, config = read_section(options, host, SECTION, HostNetworking.from_mapping)
    if config.stale_azure_vnet is None:
        message = 'is missing; name the CIDRs of the pods: {"cidrs": ["10.241.0.0/16"]}'
        raise ConfigError([("hostNetworking.staleAzureVnet", message)])
    return config


def plan(options: argparse.Namespace, host: Host) -> Result:
    """List what would be removed and why, without changing anything.

    The command lists each rule and neighbour that it would remove, and similar ones that it would
    keep, each with the reason. It takes no lock. It exits with 2 if anything would be removed, and
    with 0 otherwise.
    """
    plan = plan_stale(_load(options, host), host=host)
    return Result(
        plan.to_json,
        lambda: report_text(plan, "would go"),
        EXIT_PLAN_CHANGES if plan.removed else 0,
    )


def remove(options: argparse.Namespace, host: Host) -> Result:
    """Remove azure-vnet's leftovers, and nothing else.

    The command holds azure-vnet's own lock. It removes the stale neighbours first and then all
    stale rules in one transaction. A second run is a no-op. If another program changes the rules at
    the same time, the command removes no rules and reports this. Run it again then.

      hostrouting azure-vnet plan config.json && echo nothing to do
      hostrouting azure-vnet clean config.json
    """
    result = run_task(RemoveStaleAzureVnet(_load(options, host), host=host))
    return Result(result.to_json, lambda: report_text(result))


# --- as text --------------------------------------------------------------------------------------


def report_text(about: AzureVnetReport, goes: str = "removed") -> str:
    """Return the removed and kept objects, grouped by reason, or a single line if there are none.

    Args:
        about: the plan or report of the clean-up.
        goes: the label for removals, such as "would go" in a plan.
    """
    going = about.removed
    lines = [*_lines(goes, "-", bad, going), *_lines("stays", "=", dim, about.kept)]
    if about.other_rules:
        lines.append(dim(f"left alone: {about.other_rules} other programs' rules"))
    if going:
        lines.append(f"{goes}: {len(going)} in all")
    elif about.notes:
        lines.append("there is nothing to remove among the readable objects")
    else:
        lines.append(good("there are no leftovers of azure-vnet to remove"))
    return "\n".join([*lines, *(f"note: {clean(note)}" for note in about.notes)])


def _lines(
    word: str,
    mark: str,
    paint: Callable[[str], str],
    items: Sequence[AzureVnetItem],
) -> list[str]:
    """Return a heading for each reason, followed by a line for each object."""
    lines = []
    for reason in dict.fromkeys(item.reason for item in items):
        lines.append(clean(f"{word}, because {reason}:"))
        lines += [
            paint(clean(f"  {mark} {item.kind:9}  {item.address!s:15}  {_rest(item)}"))
            for item in items
            if item.reason == reason
        ]
    return lines


def _rest(item: AzureVnetItem) -> str:
    """Return the details to print after an item's address."""
    behind = "" if item.interface is None else f"  ({item.interface})"
    if isinstance(item.what, Neighbour):
        return f"dev {item.what.dev} {item.what.mac} PERMANENT{behind}"
    return f"{parse_pod_rule(item.what)}{behind}"
