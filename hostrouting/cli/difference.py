"""Lay out the page of ``diff``: a bar before and after for each CIDR, and what has changed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from hostrouting.cli.bars import Bar, CellKind, bar_text, cells, cells_in, legend
from hostrouting.cli.output import Page, Row, bad, dim, good
from hostrouting.kernel.host_changes import HostChange
from hostrouting.model.text import clean, shortened
from hostrouting.overlap.difference import Difference, DiffReport, LookupResult
from hostrouting.overlap.findings import FindingKind, NoteKind

# Limits for readability; the JSON output is complete.
_DIFFERENCES, _CAUSES, _RANGES = 4, 6, 4

_KINDS: dict[str, str] = {
    "no route": FindingKind.NO_ROUTE,
    **dict.fromkeys(("blackhole", "unreachable", "prohibit"), FindingKind.BLACKHOLE),
    "local": NoteKind.LOCAL,
    "broadcast": NoteKind.BROADCAST,
}


def difference_page(report: DiffReport, width: int | None) -> Page:
    """Return a page with the CIDRs whose lookups differ first."""
    on = f"on {clean(report.host or 'an unnamed host')} between {report.before} and {report.after or 'now'}"
    by_cidr = {cidr: [each for each in report.changed if each.cidr == cidr] for cidr in report.cidrs}
    by_cidr |= {each.cidr: [other for other in report.changed if other.cidr == each.cidr] for each in report.changed}
    count = cells_in(width, max(len(f"{cidr}  before") for cidr in by_cidr))
    drawn = {cidr: [cells(cidr, bar, count) for bar in _bars(found)] for cidr, found in by_cidr.items() if found}
    paints = legend(chain.from_iterable(chain(*drawn.values())), (), ("unchanged", ""))
    page: Page = [bad(f"lookups differ {on}") if report.changed else good(f"no lookup differs {on}")]
    page += [f"  {paint.on(f' {paint.symbol} ')} {clean(paint.meaning)}" for paint in dict.fromkeys(paints.values())]
    for cidr, found in sorted(by_cidr.items(), key=lambda item: not item[1]):
        lines = [
            f"{when} {bar_text(line, paints)}"
            for when, line in zip(("before", "after "), drawn.get(cidr, ()), strict=False)
        ]
        lines += chain.from_iterable(map(_lines, found[:_DIFFERENCES]))
        lines += [f"and {len(found) - _DIFFERENCES} more; --output json has them all"] * (len(found) > _DIFFERENCES)
        page.append(Row(bad("✗") if found else good("✓"), str(cidr), lines or ["unchanged"]))
    others = ", ".join(f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in report.others.items())
    page += [dim(f"changes that explain nothing here: {others}")] if others else []
    return [*page, *([bad(f"not compared: {clean(report.reason)}")] if report.reason else ())]


def _bars(found: Sequence[Difference]) -> tuple[Bar, Bar]:
    return (
        [(_cell(each.results[0].before), each.ranges) for each in found],
        [(_cell(each.results[0].after), each.ranges) for each in found],
    )


def _cell(results: Sequence[LookupResult]) -> CellKind:
    kind = _KINDS.get(results[0].type, FindingKind.OVERLAP)
    return CellKind(kind, (_words(results),) if kind is FindingKind.OVERLAP else ())


def _words(results: Iterable[LookupResult]) -> str:
    """Return where packets go, from their sources."""
    return " or ".join(
        " ".join(
            (
                *({} if each.type == "unicast" else {each.type: 0}),
                *each.hops,
                *([f"src {each.source}"] if each.source else ()),
            )
        )
        for each in results
    )


def _lines(difference: Difference) -> Iterable[str]:
    ranges = shortened(list(map(str, difference.ranges)), " ", _RANGES)
    for each in difference.results:
        of = "" if "UDP" in each.packets else f" for {', '.join(each.packets)}"
        yield clean(f"{ranges}: {_words(each.before)} → {_words(each.after)}{of}")
    yield from shortened(
        [clean(line) for cause in difference.causes for line in cause_lines(cause)], "\n", _CAUSES
    ).split("\n")


def cause_lines(change: HostChange) -> Iterable[str]:
    """Yield what went and what came."""
    if sorted(change.before) == sorted(change.after):
        yield f"by another order of {change.kind}s: {change.after[0]} is now before {change.after[1]}"
        return
    yield from (f"- {change.kind} {line}" for line in change.before)
    yield from (f"+ {change.kind} {line}" for line in change.after)
