"""``hostrouting lb-probe``: a few lines over the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli import styled
from hostrouting.cli.azure.neighbours import load_networking
from hostrouting.cli.parser import Parser, Word, add_config, add_output
from hostrouting.cli.running import EXIT_PLAN_CHANGES, run_task, say_as_asked

if TYPE_CHECKING:
    import argparse

    from hostrouting.boot.host import Host

__all__ = ["WORDS"]


def _apply(options: argparse.Namespace, host: Host | None) -> int:
    from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe
    from hostrouting.boot.host import Host
    from hostrouting.cli.azure.probe_text import report_text

    config = load_networking(options, host)
    if options.root is not None:
        host = Host.image(options.root)
    result = run_task(ConfigureLoadBalancerProbe(config, host=host))
    say_as_asked(options, result.to_json(), report_text(result))
    return 0


def _plan(options: argparse.Namespace, host: Host | None) -> int:
    import phases
    from hostrouting.azure.probe.tasks import plan_next_boot, plan_probe
    from hostrouting.boot.host import Host
    from hostrouting.cli.azure.probe_text import plan_text

    config, on = load_networking(options, host), host or Host()
    plan = run_task(phases.task("plan")(lambda scope: plan_probe(config, on, scope)))
    boot = plan_next_boot(config, on, plan)
    text = plan_text(plan, boot, wait_seconds=config.load_balancer_probe.wait_seconds)
    say_as_asked(options, {"schema": 1, **plan.to_json(), "boot": boot.to_json()}, text)
    is_waiting = plan.missing is not None and plan.skipped_because is None
    return 0 if plan.is_empty and boot.is_empty and not is_waiting else EXIT_PLAN_CHANGES


def _remove(options: argparse.Namespace, host: Host | None) -> int:
    del options
    from hostrouting.azure.probe.tasks import RemoveLoadBalancerProbe
    from hostrouting.cli.azure.probe_text import report_text

    styled.say(report_text(run_task(RemoveLoadBalancerProbe(host=host))))
    return 0


def _add_apply(parser: Parser) -> None:
    add_config(parser)
    parser.add_argument("--root", metavar="DIR", help="into an image mounted at DIR: files and enablement only")
    add_output(parser)


def _add_plan(parser: Parser) -> None:
    add_config(parser)
    add_output(parser)


_APPLY_MORE = """

Now: the rules in one nftables transaction, seen to be in force, and a route to the rewritten address, so that answers
of the host itself find back without a default route. For every boot: a script, its unit, and a line in the gate; a
flush of the ruleset by nftables.service or nftables-flush.service is made good at once. A second run changes nothing
and keeps the counters. A node without IPv6 is left alone, unless CONFIG says "required": true and an address may come
later. What fails is an error if it says so; otherwise it is reported, and the node starts.

  hostrouting lb-probe apply /etc/aks-flex-node/config.json
  hostrouting lb-probe apply --root /mnt/image config.json      with "devices"; holds from the image's first boot
"""
_PLAN_MORE = """

The rules as a diff of nft's own listings, the route with + and -, files as diffs, units. Exits with 2 if there is
anything to change, with 0 if not.
"""
_REMOVE_MORE = """

Rules, route, files and units. Needs no config. hostrouting remove does it too, with everything else.
"""

WORDS = {
    "apply": Word("rewrite the probes, now and at every boot", _APPLY_MORE, _add_apply, _apply),
    "plan": Word("show what apply would change, and change nothing", _PLAN_MORE, _add_plan, _plan),
    "remove": Word("take back all that was installed for probes", _REMOVE_MORE, run=_remove),
}
