"""Plans and reports of the load balancer's probe, as people read them."""

from __future__ import annotations

import re

from hostrouting.azure.probe.plan import PinPlan, ProbeReport
from hostrouting.azure.probe.port import Pin
from hostrouting.azure.probe.ruleset import PROBE_SOURCE
from hostrouting.cli.azure.probe import plan_text, report_text
from hostrouting.model.changes import Change, Changes

OURS = Pin(PROBE_SOURCE, "eth0", 217, 1)
OLD = Pin(PROBE_SOURCE, "eth1", 217, 1)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_plan_shows_devices_rules_routes_and_files() -> None:
    boot = Changes(
        files=(Change("/etc/x", "added", after="y\n"),), units=(Change("load-balancer-probe.service", "enabled"),)
    )
    plan = ProbeReport(
        "eth0",
        "eth0 has fd00::4",
        boot=boot,
        rules_before="a\nb\n",
        rules_after="a\nc\n",
        pins=PinPlan(add=(OURS,), remove=(OLD,)),
    )
    assert plain(plan_text(plan, wait_seconds=5)).splitlines() == [
        "probes come in by: eth0  (eth0 has fd00::4)",
        "--- nftables table ip6 azure_slb_probe",
        "+++ nftables table ip6 azure_slb_probe",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
        f"+ {OURS}",
        f"- {OLD}",
        "--- /dev/null",
        "+++ /etc/x",
        "@@ -0,0 +1 @@",
        "+y",
        "enable load-balancer-probe.service",
    ]


def test_a_plan_tells_a_new_table_from_one_that_goes() -> None:
    assert plain(plan_text(ProbeReport(rules_after="a\n"), wait_seconds=5)).endswith(
        "azure_slb_probe\n@@ -0,0 +1 @@\n+a"
    )
    assert plain(plan_text(ProbeReport(rules_before="a\n"), wait_seconds=5)) == "- nftables table ip6 azure_slb_probe"


def test_a_plan_without_changes_says_so() -> None:
    plan = ProbeReport("eth0", "x", rules_before="a", rules_after="a", pins=PinPlan(unchanged=(OURS,)))
    assert plain(plan_text(plan, wait_seconds=5)).splitlines()[1:] == [
        "= nftables table ip6 azure_slb_probe",
        f"= {OURS}",
        "nothing to change",
    ]


def test_a_plan_says_what_would_be_waited_for_or_why_nothing_is_done() -> None:
    plan = ProbeReport(missing="a default route")
    assert plain(plan_text(plan, wait_seconds=7)) == "would wait up to 7 s for a default route"
    skipped = ProbeReport(skipped_because="no IPv6")
    assert plain(plan_text(skipped, wait_seconds=7)).splitlines() == [
        "skipped: no IPv6",
        "nothing to change",
    ]


def test_a_report_shows_what_was_done() -> None:
    report = ProbeReport(
        "eth0", "eth0 has fd00::4", rules_after="a\n", pins=PinPlan(add=(OURS,), remove=(OLD,)),
        boot=Changes(files=(Change("/etc/x", "added"),)),
    )  # fmt: skip
    assert plain(report_text(report)).splitlines() == [
        "probes come in by: eth0  (eth0 has fd00::4)",
        "nftables table ip6 azure_slb_probe: loaded",
        f"added     {OURS}",
        f"removed   {OLD}",
        "added     /etc/x",
    ]
    assert plain(report_text(ProbeReport(skipped_because="no IPv6"))) == "skipped: no IPv6\nnothing to change"


def test_a_problem_is_told_line_by_line_and_cannot_colour_the_terminal() -> None:
    report = ProbeReport(device="eth0", problem="nft refused: \x1b[31m\nand more")
    lines = plain(report_text(report)).splitlines()
    assert lines[1].startswith("problem: nft refused: ")
    assert "\x1b" not in lines[1]
    assert lines[2] == "problem: and more"
