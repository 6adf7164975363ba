"""Make the page of ``diff``: for each CIDR, bars before and after, and the causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import summarize_address_range
from itertools import chain, groupby, islice

from hostrouting.cli.bars import Bar, CellKind, bar_text, cells, cells_in, legend, legend_lines
from hostrouting.cli.output import Page, Row, bad, dim, good
from hostrouting.kernel.host_changes import HostChange, RenamedNic
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.integer_prefixes import prefix_around
from hostrouting.model.text import clean, counted, plural, shortened
from hostrouting.overlap.difference import Difference, DiffReport, LookupResult
from hostrouting.overlap.findings import FindingKind, NoteKind

# Longer lists are shortened in the text. The JSON output is complete.
_DIFFERENCES = 4
_CAUSES = 6
_RANGES = 4
_RENAMED = 8

_KINDS: dict[str, str] = {
    "no route": FindingKind.NO_ROUTE,
    **dict.fromkeys(("blackhole", "unreachable", "prohibit"), FindingKind.BLACKHOLE),
    "local": NoteKind.LOCAL,
    "broadcast": NoteKind.BROADCAST,
}


def difference_page(report: DiffReport, width: int | None, *, is_verbose: bool = False) -> Page:
    """Return a page with all CIDRs; those whose lookups differ come first.

    Args:
        report: the report on the differences.
        width: the terminal's width in columns; None if the output isn't a terminal.
        is_verbose: whether the changes that explain no difference are listed, and not only counted.
    """
    host = clean(report.host or "an unnamed host")
    # A snapshot of another program may have no time.
    on = f"on {host} between {report.before or 'A'} and {report.after or 'B'}"
    if report.reason and not report.changed:
        unknown = f"whether lookups differ {on} isn't known: {clean(report.reason)}"
        return [bad(unknown), *_others(report, is_verbose=is_verbose)]
    page: Page = [
        bad(f"lookups differ {on}") if report.changed else good(f"no lookup differs {on}")
    ]
    page += map(bad, renamed_words(report.renamed))
    page += _chart(report, width)
    page += _others(report, is_verbose=is_verbose)
    if report.reason:
        page.append(bad(f"not compared: {clean(report.reason)}"))
    return page


def _chart(report: DiffReport, width: int | None) -> Page:
    """Return a legend, and a row for each CIDR."""
    by_cidr: dict[IpNetwork, list[Difference]] = {}
    for each in report.changed:
        by_cidr.setdefault(each.cidr, []).append(each)
    cidrs = dict.fromkeys((*by_cidr, *report.cidrs))
    count = cells_in(width, max(len(f"{cidr}  before") for cidr in cidrs))
    drawn: dict[IpNetwork, list[tuple[CellKind | None, ...]]] = {}
    for cidr, found in by_cidr.items():
        drawn[cidr] = [cells(cidr, bar, count) for bar in _bars(found)]
    all_cells = chain.from_iterable(chain(*drawn.values()))
    paints = legend(all_cells, (), ("unchanged", ""))
    page: Page = [*legend_lines(paints)]
    named: dict[tuple[HostChange, ...], IpNetwork] = {}
    for cidr in cidrs:
        if cidr not in by_cidr:
            page.append(Row(good("✓"), str(cidr), ["unchanged"]))
            continue
        before, after = (bar_text(line, paints) for line in drawn[cidr])
        lines = [f"before {before}", f"after  {after}", *_lines(by_cidr[cidr], named)]
        page.append(Row(bad("✗"), str(cidr), lines))
    return page


def _others(report: DiffReport, *, is_verbose: bool) -> Iterator[str]:
    """Yield the number of changes that explain no difference; if verbose, the changes, too."""
    counts = Counter[str]()
    for change in report.others:
        counts[str(change.kind)] += change.count
    if not counts:
        return
    words = (counted(count, kind) for kind, count in counts.items())
    yield dim(f"changes that explain nothing here: {', '.join(words)}")
    if is_verbose:
        for change in report.others:
            yield from (dim(f"  {clean(line)}") for line in cause_lines(change))


def _bars(found: Sequence[Difference]) -> tuple[Bar, Bar]:
    before = [(_cell(each.results[0].before), each.ranges) for each in found]
    after = [(_cell(each.results[0].after), each.ranges) for each in found]
    return before, after


def _cell(results: Sequence[LookupResult]) -> CellKind:
    kind = _KINDS.get(results[0].type, FindingKind.OVERLAP)
    return CellKind(kind, (_words(results),) if kind is FindingKind.OVERLAP else ())


def _words(results: Iterable[LookupResult]) -> str:
    """Return the possible lookup results, joined by "or"."""
    return " or ".join(map(str, results))


def _lines(
    found: Sequence[Difference],
    named: dict[tuple[HostChange, ...], IpNetwork],
) -> Iterator[str]:
    """Yield lines with a CIDR's ranges and their causes.

    If another CIDR has shown the causes already, a line names that CIDR instead.

    Args:
        found: the CIDR's differences.
        named: the causes that have been shown already, each with its CIDR.
    """
    for causes, alike in groupby(found[:_DIFFERENCES], key=lambda each: each.causes):
        for difference in alike:
            ranges = _ranges_text(difference.ranges)
            for each in difference.results:
                of = "" if "UDP" in each.packets else f" for {', '.join(each.packets)}"
                yield clean(f"{ranges}: {_words(each.before)} → {_words(each.after)}{of}")
        if causes in named:
            yield f"by the same change as in {named[causes]}"
        else:
            named[causes] = found[0].cidr
            lines = [clean(line) for cause in causes for line in cause_lines(cause)]
            yield from shortened(lines, "\n", _CAUSES).split("\n")
    if len(found) > _DIFFERENCES:
        yield f"and {len(found) - _DIFFERENCES} more; --output json has them all"


def _ranges_text(ranges: Sequence[IpNetwork]) -> str:
    """Return the first ranges. If there are few gaps between them, name these instead.

    Args:
        ranges: the ranges, which don't overlap, sorted by address.
    """
    if len(ranges) > _RANGES:
        family = Family.of(ranges[0])
        ends = int(ranges[0].network_address), int(ranges[-1].broadcast_address)
        around = family.network(prefix_around(*ends, family.bits))
        beside = [*islice(_beside(around, ranges), _RANGES + 1)]
        if len(beside) <= _RANGES:
            return f"all of {around} but {' '.join(map(str, beside))}"
    return shortened(list(map(str, ranges)), " ", _RANGES)


def _beside(around: IpNetwork, ranges: Sequence[IpNetwork]) -> Iterator[IpNetwork]:
    """Yield the parts of a CIDR that are in none of its ranges."""
    address = Family.of(around).address
    lasts = [int(around.network_address) - 1, *(int(each.broadcast_address) for each in ranges)]
    firsts = [*(int(each.network_address) for each in ranges), int(around.broadcast_address) + 1]
    for last, first in zip(lasts, firsts, strict=True):
        if last + 1 < first:
            yield from summarize_address_range(address(last + 1), address(first - 1))


def renamed_words(renamed: Sequence[RenamedNic]) -> Iterator[str]:
    """Yield a clause with the NICs that have other names, if there are any."""
    if renamed:
        pairs = [f"{nic.before} is now {nic.after}" for nic in renamed]
        yield clean(f"NICs have other names: {shortened(pairs, ', ', _RENAMED)}")


def cause_lines(change: HostChange) -> Iterable[str]:
    """Yield a line for each object that went or came. If only the order changed, yield one line."""
    if change.before == change.after:
        # The same interface was made again. Only its index has changed, and lines don't show the
        # index.
        yield f"by another index: {change.kind} {', '.join(change.after)}"
        return
    if sorted(change.before) == sorted(change.after):
        yield (
            f"by another order of {plural(change.kind)}: "
            f"{change.after[0]} is now before {change.after[1]}"
        )
        return
    yield from (f"- {change.kind} {line}" for line in change.before)
    yield from (f"+ {change.kind} {line}" for line in change.after)
