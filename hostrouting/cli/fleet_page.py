"""Many recorded hosts as one page for a browser, which needs nothing from elsewhere. Nothing else loads jinja2."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import attrs
from jinja2 import Environment, StrictUndefined

from hostrouting.cli.fleet import counts_line, group_title
from hostrouting.cli.report import overlap_picture
from hostrouting.config.schema import in_json
from hostrouting.model.text import clean
from hostrouting.overlap.wording import reasons

if TYPE_CHECKING:
    from hostrouting.overlap.findings import OverlapReport
    from hostrouting.overlap.fleet import FleetReport, HostGroup


def fleet_page(report: FleetReport) -> str:
    """The groups as an HTML document, each with a picture of its first host, the fix to copy, and hosts to filter.

    Args:
        report: what was found.

    Returns:
        A document in ASCII, so that it stays what it is in any encoding.
    """
    here = resources.files("hostrouting.cli")
    script = here.joinpath("fleet.js").read_text(encoding="ascii")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(
        here.joinpath("fleet.html").read_text(encoding="ascii")
    )
    text = page.render(
        counts=counts_line(report),
        groups=map(_told, report.groups),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _told(group: HostGroup) -> dict[str, Any]:
    return {
        "verdict": str(group.verdict),
        "title": group_title(group),
        "picture": _picture(group.report) if group.failures and group.report.judged else "",
        "reasons": [clean(reason) for reason in reasons(group.report)],
        "fix": ",\n".join(json.dumps(entry) for entry in in_json(group.fix)),
        "hosts": [clean(host) for host in group.hosts],
    }


def _picture(report: OverlapReport) -> str:
    # Notes are about this host alone. As an image it can hold no script, and its styles are its own.
    return base64.b64encode(overlap_picture(attrs.evolve(report, notes=())).encode()).decode()
