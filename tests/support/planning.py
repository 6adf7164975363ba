"""Plan a config's changes for the next boot."""

from __future__ import annotations

from hostrouting import Config, Host, Layout
from hostrouting.azure.probe.ruleset import PROBE, probe_part
from hostrouting.boot.installation import apply_additions, apply_removals, prepare
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import Wanted, wanted_manifest
from hostrouting.boot.plan import plan_next_boot
from hostrouting.model.changes import Changes
from phases import CancelScope, all_or_nothing


def plan_boot(config: Config, host: Host) -> Changes:
    """Return the changes that `Configure` would make for the next boot."""
    return plan_next_boot(host, Wanted.of(config, host.layout)).changes


def wanted_probe(device: str | None, consumer: str, layout: Layout) -> Wanted:
    """Return a request to set up the load balancer probe, or to remove it if ``device`` is None."""
    parts = () if device is None else (probe_part(device, consumer, layout),)
    return Wanted((PROBE,), parts, consumer)


def install_for_boot(host: Host, wanted: Wanted) -> Changes:
    """Apply only the plan for the next boot, and return the changes."""
    plan = plan_next_boot(host, wanted)
    with all_or_nothing() as undo:
        loaded = prepare(plan, host, undo)
        changes = apply_additions(plan, host, undo, loaded)
    for change in apply_removals(plan, host, CancelScope()):
        changes |= change
    return changes


def manifest_of(config: Config, layout: Layout) -> Manifest:
    """Return the manifest of a host on which only this config is installed."""
    return wanted_manifest(Manifest(), Wanted.of(config, layout), layout)
