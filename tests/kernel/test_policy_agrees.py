"""Test that the boot script for static routes leaves the rules and side tables that the task
leaves, and refuses what it refuses, and that the check script judges soundly with such rules.
"""

from __future__ import annotations

import random
import re
from difflib import ndiff
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
from nightly import by_day, printed
from node import attempt, on_linux, tool
from scripts import AWKS, Sandbox, awk_or_skip, judged_soundly, recorded
from worlds.policy import world

import phases
from hostrouting import Config, Host, Layout, RouteOverlap
from hostrouting.boot.render import render_check, render_static_routes
from hostrouting.config.routing import UplinkRecord
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.family import Family
from hostrouting.model.verified_uplinks import VerifiedUplink, verified_text
from hostrouting.overlap.check import check_families
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel


class Outcome(NamedTuple):
    """Rules, routes and notes after a run, and what it failed with, or an empty string."""

    state: list[list[str]]
    notes: list[str]
    error: str


def read_state() -> list[list[str]]:
    """Return all rules, in their order with one preference only pairs of ours, and the routes."""
    state = []
    for family in ("-4", "-6"):
        rules = tool("ip", family, "-N", "rule", "show").splitlines()
        pairs = sorted(
            {line: None for line in rules if " proto 217" in line and " to " in line},
            key=lambda line: line.partition(" lookup ")[0],
        )
        whose = () if family == "-4" else ("proto", "217")
        shown = tool("ip", family, "-N", "route", "show", "table", "all", *whose)
        # The kernel notices later that a carrier is lost.
        routes = re.sub(" (linkdown|dead)", "", shown).splitlines()
        state += [pairs, sorted(rules), routes]
    return state


def run_task(config: Config, root: Path) -> Outcome:
    host = Host(NetlinkBackend(), FakeSystemd(), Layout(root), NetlinkBackend6())
    host.layout.verified.parent.mkdir(parents=True)
    host.layout.verified.write_text(verified_text(config.verified))
    try:
        report = InstallRoutes(config, host=host).do(phases.CancelScope())
    except HostRoutingError as error:
        words = "\n".join([str(error), *getattr(error, "__notes__", ())])
        return Outcome(read_state(), [], words)
    return Outcome(read_state(), [*report.plan.notes], "")


def run_script(config: Config, sandbox: Sandbox) -> Outcome:
    """Run the script twice, check that the second run writes nothing, and return the first."""
    script = render_static_routes(config)
    with_record: dict[str, Any] = recorded(config.verified)
    done = sandbox.run(script, **with_record)
    state = read_state()
    lines = done.stdout.splitlines()
    notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
    assert (done.returncode == 0) == (not done.stderr)
    if not done.stderr:
        again = sandbox.run(script, **with_record)
        assert (again.returncode, again.stderr) == (0, "")
        assert again.stdout.splitlines() == ["nothing to change", *(f"note: {n}" for n in notes)]
        assert read_state() == state
    return Outcome(state, [] if done.stderr else notes, done.stderr)


def build(seed: int) -> tuple[NamespaceKernel, Config]:
    """Build a host in a namespace of its own, and return it with a config."""
    steps, config = world(seed)
    chance = random.Random(f"{seed} record")
    if chance.random() < 0.5:
        verified = (VerifiedUplink(chance.choice(("eth0", "eth0", "eth1", "ib0"))),)
        strict = RouteOverlap(["10.96.0.0/12"], "STRICT", settle_seconds=0)
        config = attrs.evolve(config, record=UplinkRecord(verified), route_overlap=strict)
    kernel = on_linux()
    attempt("ip", "-4", "-force", "-batch", "-", stdin="\n".join(steps))
    return kernel, config


def differences(before: list[list[str]], after: list[list[str]]) -> list[str]:
    pairs = zip(before, after, strict=True)
    return [line for one, other in pairs for line in ndiff(one, other) if line[0] in "+-"]


def see_agreement(seed: int, root: Path) -> str:
    """Build a host twice, run the script on one and the task on the other, and compare.

    Return the script's error, or an empty string.
    """
    root.mkdir()
    outcomes = []
    for is_boot in (True, False):
        kernel, config = build(seed)  # as long as it exists, so does its namespace
        before = read_state()
        sandbox = Sandbox(root, awk_or_skip(AWKS[seed % len(AWKS)]))
        outcome = run_script(config, sandbox) if is_boot else run_task(config, root)
        left = differences(before, outcome.state) if outcome.error else []
        assert not left, (seed, is_boot, outcome.error, left)
        outcomes.append(outcome)
        del kernel
    script, task = outcomes
    unlike = differences(script.state, task.state)
    assert (bool(script.error), sorted(script.notes), unlike) == (
        bool(task.error),
        sorted(task.notes),
        [],
    ), (seed, script.error, task.error)
    return script.error


def test_a_gateway_waits_for_the_route_that_reaches_it(tmp_path: Path) -> None:
    """A random run found this: both routes of a side table are replaced, the gateway's second."""
    assert not see_agreement(700243, tmp_path / "700243")


def test_script_and_task_leave_the_same(tmp_path: Path) -> None:
    seeds = range(by_day(8, by_night=2000))
    errors = [see_agreement(seed, tmp_path / str(seed)) for seed in printed(seeds)]
    # Otherwise, the hosts are too strange, or not strange enough.
    assert len(errors) * 0.1 < sum(map(bool, errors)) < len(errors) * 0.7


_EXPECTED = ("10.96.0.0/12", "172.16.0.0/16", "10.0.0.0/8", "10.2.0.0/24", "198.51.100.0/24")


@pytest.mark.parametrize("seed", range(by_day(4, by_night=2000)))
def test_the_check_is_sound_with_our_rules(tmp_path: Path, seed: int) -> None:
    backends = {Family.IPV4: NetlinkBackend(), Family.IPV6: NetlinkBackend6()}
    kernel, config = build(seed)  # as long as it exists, so does its namespace
    sandbox = Sandbox(tmp_path, awk_or_skip(AWKS[seed % len(AWKS)]))
    with_record: dict[str, Any] = recorded(config.verified)
    sandbox.run(render_static_routes(config), **with_record)
    check = Config(
        uplinks=config.uplinks,
        record=config.record,
        route_overlap={
            "mode": "STRICT",
            "settleSeconds": 0,
            "expectedCidrs": random.Random(seed).sample(_EXPECTED, 2),
        },
        wait_seconds=0,
    )
    report = check_families(check, backends.__getitem__, phases.CancelScope())
    sandbox.run(render_check(check), **with_record)
    judged_soundly(sandbox.told(), report)
    del kernel
