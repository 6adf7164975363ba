"""Reports on many hosts, which show their groups as text or as a page for a browser.

No other module imports jinja2.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from hostrouting.cli.bars import dev_words
from hostrouting.cli.layout import page_text
from hostrouting.cli.output import Page, Row, bad, dim, good
from hostrouting.cli.report import overlap_picture
from hostrouting.model.jsonable import in_json
from hostrouting.model.text import clean, shortened
from hostrouting.overlap.findings import OverlapReport, Verdict
from hostrouting.overlap.fleet import FleetReport, HostGroup
from hostrouting.overlap.wording import advice, reasons

LIBRARIES = {"html": "jinja2"}
"""The library that an output needs, from the extra of the same name."""

# A user won't look at more pictures, and programs have the JSON.
_SHOWN_HOSTS, _SHOWN_EVENTS, _DRAWN_GROUPS = 16, 4, 50
_MARKS = {Verdict.OK: good("✓"), Verdict.OVERLAP: bad("✗"), Verdict.UNKNOWN: bad("?")}


def fleet_text(report: FleetReport, width: int | None) -> str:
    """Return the groups as text, each with its fix and some of its hosts.

    Args:
        report: the fleet's report.
        width: the number of columns of the terminal, or None if the output isn't a terminal.

    Returns:
        Lines with colours.
    """
    page: Page = [_counts(report)]
    for group in report.groups:
        hosts = shortened(list(map(clean, group.hosts)), " ", _SHOWN_HOSTS)
        said = [_title(group), *(good(clean(line)) for line in advice(group.report)), dim(hosts)]
        page.append(Row(_MARKS[group.verdict], f"{len(group.hosts):,}", said))
    return page_text(page, width)


def _counts(report: FleetReport) -> str:
    words = ", ".join(f"{count:,} {verdict}" for verdict, count in report.counts.items())
    count = sum(report.counts.values())
    away = "" if report.one_event_away is None else f"; {report.one_event_away:,} one event away"
    return f"{count:,} snapshot{'s' if count != 1 else ''}: {words}{away}"


def _title(group: HostGroup) -> str:
    """Return the result that all hosts of a group have in common."""
    if group.verdict is Verdict.UNKNOWN:
        return f"unknown: {clean(group.report.reason or '')}"
    failures = (
        f"{each.kind} {each.cidr}" + (f" by {clean(dev_words(each.devs))}" if each.devs else "")
        for each in group.failures
    )
    risks = [clean(f"{e.event.subject} {e.event.kind}") for e in group.report.events or () if e.is_risk]
    away = f"; one event away: {shortened(risks, ', ', _SHOWN_EVENTS)}" if risks else ""
    return ("; ".join(failures) or "ok") + away


# --- a page for a browser ------------------------------------------------------------------------------------------


def fleet_page(report: FleetReport) -> str:
    """Return the groups as an HTML page, each with a picture of its first host and a fix that can be copied.

    Args:
        report: the fleet's report.

    Returns:
        A self-contained document in ASCII, so that its encoding doesn't matter.
    """
    import hashlib

    from jinja2 import Environment, StrictUndefined

    template, script = (
        resources.files("hostrouting.cli").joinpath(name).read_text(encoding="ascii")
        for name in ("fleet.html", "fleet.js")
    )
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(template)
    text = page.render(
        counts=_counts(report),
        groups=[_section(group, is_drawn=number < _DRAWN_GROUPS) for number, group in enumerate(report.groups)],
        script=script,
        script_hash=_base64(hashlib.sha256(script.encode()).digest()),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _section(group: HostGroup, *, is_drawn: bool) -> dict[str, Any]:
    return {
        "verdict": str(group.verdict),
        "title": _title(group),
        "picture": _picture(group.report) if group.failures and is_drawn else "",
        "reasons": [clean(reason) for reason in reasons(group.report)],
        "fix": ",\n".join(json.dumps(entry) for entry in in_json(group.fix)),
        "hosts": [clean(host) for host in group.hosts],
    }


def _picture(report: OverlapReport) -> str:
    # The notes are left out, because they are only about the first host. The page embeds the picture as an image, so
    # that it can't run scripts and its styles stay separate.
    return _base64(overlap_picture(report, tells_notes=False).encode())


def _base64(content: bytes) -> str:
    import base64

    return base64.b64encode(content).decode()
