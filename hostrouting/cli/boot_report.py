"""What the boot check's verdict leaves out: what is shadowed, what mends it, what is worth a note, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import phases
from hostrouting.boot.files import write_if_changed
from hostrouting.boot.host import Host
from hostrouting.boot.manifest import Manifest
from hostrouting.cli import output
from hostrouting.cli.running import EXIT_FAILURE, run_task
from hostrouting.model.text import to_json_text
from hostrouting.overlap.check import check_overlap
from hostrouting.overlap.markers import marked_verdict
from hostrouting.overlap.wording import advice, summary

if TYPE_CHECKING:
    from hostrouting.overlap.findings import OverlapReport

__all__ = ["explain_verdict"]


def explain_verdict(host: Host | None) -> int:
    """Judge again by the installed config, say all of it on standard error, and leave the report beside the marker.

    Args:
        host: where; None: this host.

    Returns:
        0; 1 if the marker says otherwise: then nothing is said or left of a verdict that isn't the script's.
    """
    on = host or Host()
    config = Manifest.load(on.layout).config.without_waits()
    report: OverlapReport = run_task(phases.task("check")(lambda scope: check_overlap(config, on.routes, scope)))
    marked = marked_verdict(on.layout)
    if report.verdict is not marked:
        output.complain(f"hostrouting: the marker says {marked}, and the host is {report.verdict} by now")
        return EXIT_FAILURE
    write_if_changed(on.layout.report, to_json_text(report.to_json()))
    for line in (summary(report), *advice(report), *(f"{note.kind}: {note.message}" for note in report.notes)):
        output.complain(line)
    return 0
