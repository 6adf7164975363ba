"""Many recorded hosts told: their groups as a page for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.output import Row, bad, dim, good
from hostrouting.cli.report import dev_words
from hostrouting.cli.running import page_text
from hostrouting.model.text import clean, shortened
from hostrouting.overlap.findings import Verdict
from hostrouting.overlap.wording import advice

if TYPE_CHECKING:
    from hostrouting.cli.output import Page
    from hostrouting.overlap.fleet import FleetReport, HostGroup

# Programs have the JSON.
_SHOWN_HOSTS = 16
_MARKS = {Verdict.OK: good("✓"), Verdict.OVERLAP: bad("✗"), Verdict.UNKNOWN: bad("?")}


def counts_line(report: FleetReport) -> str:
    """How many hosts there are of each verdict."""
    counts = report.counts
    words = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    return f"{sum(counts.values()):,} recordings: {words}"


def group_title(group: HostGroup) -> str:
    """What is the same on the hosts of a group, in a line."""
    if group.verdict is Verdict.UNKNOWN:
        return f"unknown: {clean(group.report.reason or '')}"
    failures = (
        f"{each.kind} {each.cidr}" + (f" by {clean(dev_words(each.devs))}" if each.devs else "")
        for each in group.failures
    )
    return "; ".join(failures) or "ok"


def fleet_text(report: FleetReport, width: int | None) -> str:
    """The groups for people, each with what mends it and with some of its hosts.

    Args:
        report: what was found.
        width: how many columns a terminal has; None: it isn't for one.

    Returns:
        Lines with colours.
    """
    page: Page = [counts_line(report)]
    for group in report.groups:
        hosts = shortened(list(map(clean, group.hosts)), " ", _SHOWN_HOSTS)
        said = [group_title(group), *(good(clean(line)) for line in advice(group.report)), dim(hosts)]
        page.append(Row(_MARKS[group.verdict], f"{len(group.hosts):,}", said))
    return page_text(page, width)
