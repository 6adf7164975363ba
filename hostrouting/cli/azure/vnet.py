"""``hostrouting azure-vnet``: a few lines over the task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.azure.neighbours import load_networking
from hostrouting.cli.parser import Parser, Word, add_config, add_output
from hostrouting.cli.running import EXIT_PLAN_CHANGES, run_task, say_as_asked

if TYPE_CHECKING:
    import argparse

    from hostrouting.azure.config import HostNetworking
    from hostrouting.boot.host import Host

__all__ = ["WORDS"]


def _load(options: argparse.Namespace, host: Host | None) -> HostNetworking:
    """The config; here one that asks for nothing is none: nothing outside of its CIDRs is ever touched."""
    from hostrouting.model.errors import ConfigError

    config = load_networking(options, host)
    if config.stale_azure_vnet is None:
        raise ConfigError(
            [("hostNetworking.staleAzureVnet", 'is missing; name the CIDRs of the pods: {"cidrs": ["10.241.0.0/16"]}')]
        )
    return config


def _plan(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting.azure.vnet.tasks import plan_stale
    from hostrouting.boot.host import Host
    from hostrouting.cli.azure.vnet_text import plan_text

    plan = plan_stale(_load(options, host), host or Host())
    say_as_asked(options, plan.to_json(), plan_text(plan))
    return 0 if plan.is_empty else EXIT_PLAN_CHANGES


def _clean(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet
    from hostrouting.cli.azure.vnet_text import report_text

    result = run_task(RemoveStaleAzureVnet(_load(options, host), host=host))
    say_as_asked(options, result.to_json(), report_text(result))
    return 0


def _add_arguments(parser: Parser) -> None:
    add_config(parser)
    add_output(parser)


_PLAN_MORE = """

Each rule and neighbour that goes, and each that stays though it looks alike, with the reason. Takes no lock.
Exits with 2 if anything would go, with 0 if not.
"""
_CLEAN_MORE = """

Takes azure-vnet's own lock, removes stale neighbours, then all stale rules in one transaction, and looks again: a
second run finds nothing. If somebody changes the rules meanwhile none goes, and it says so: run it again.

  hostrouting azure-vnet plan config.json && echo nothing to do
  hostrouting azure-vnet clean config.json
"""

WORDS = {
    "plan": Word("list what would go, and why; change nothing", _PLAN_MORE, _add_arguments, _plan),
    "clean": Word("remove what azure-vnet has left, and nothing else", _CLEAN_MORE, _add_arguments, _clean),
}
