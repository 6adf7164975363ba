"""A run as a table for a terminal, and as a page of the docs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.charts import growth_svg
from hostrouting.cli.output import bad, dim, good, head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.figures import Figures, Report, Result

__all__ = ["as_table", "as_words", "write_docs"]

_HEADINGS = ("", "median", "from - to", "against", "median", "from - to", "ratio", "cpu", "at most", "")
_RIGHT = (1, 4, 6, 7, 8)


def as_table(report: Report) -> str:
    """A run, aligned, for a terminal."""
    rows = [_HEADINGS, *(_cells(result) for result in report.results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [head(_line(_HEADINGS, widths))]
    for result, row in zip(report.results, rows[1:], strict=True):
        words = row[-1]
        paint = good if result.is_met else bad
        lines.append(_line((*row[:-1], ""), widths).rstrip() + (f"  {paint(words)}" if words else ""))
        lines += [dim(f"  {note}") for note in result.notes]
    return "\n".join([*lines, "", *(dim(line) for line in as_words(report))])


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = (
        cell.rjust(width) if number in _RIGHT else cell.ljust(width)
        for number, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _cells(result: Result) -> tuple[str, ...]:
    theirs = ("", "") if result.theirs is None else _figures(result, result.theirs)
    ratio = "" if result.theirs is None else f"{_short(result.value)}x"
    cpu = "" if result.cpu_ratio is None else f"{_short(result.cpu_ratio)}x"
    most = "" if result.most is None else _value(result, result.most)
    return (result.what, *_figures(result, result.ours), result.against, *theirs, ratio, cpu, most, _verdict(result))


def _figures(result: Result, figures: Figures) -> tuple[str, str]:
    if result.is_memory:
        return f"{figures.median / 2**20:.1f} MiB", f"{figures.least / 2**20:.1f} - {figures.most / 2**20:.1f}"
    return f"{_short(figures.median * 1e3)} ms", f"{_short(figures.least * 1e3)} - {_short(figures.most * 1e3)}"


def _value(result: Result, value: float) -> str:
    return f"{value * 1e3:g} ms" if result.theirs is None else f"{value:g}x"


def _verdict(result: Result) -> str:
    if result.most is None:
        return ""
    return "ok" if result.is_met else f"misses by {(result.value / result.most - 1) * 100:.0f} %"


def _short(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def as_words(report: Report) -> Iterator[str]:
    """On what machine, and how busy it was."""
    return (f"{what}: {words}" for what, words in report.made.items())


# --- the page ----------------------------------------------------------------------------------------------------


def write_docs(report: Report, folder: Path) -> None:
    """Write the page, its pictures, and the figures that they are made of.

    Args:
        report: a whole run.
        folder: gets ``performance.md``, a picture of each growth, and ``performance.json``.
    """
    (folder / "performance.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    for growth in report.growths:
        (folder / f"performance-{growth.name}.svg").write_text(growth_svg(growth))
    (folder / "performance.md").write_text(_page(report))


def _page(report: Report) -> str:
    promised = [result for result in report.results if result.most is not None]
    others = [result for result in report.results if result.most is None]
    missed = [result for result in promised if not result.is_met]
    verdict = (
        f"{len(missed)} of the {len(promised)} promises below {'is' if len(missed) == 1 else 'are'} missed in this run."
        if missed
        else f"All {len(promised)} promises below hold."
    )
    pictures = "\n\n".join(f"![{growth.title}](performance-{growth.name}.svg)" for growth in report.growths)
    return f"""# Performance

{verdict} `./run bench` prints this table, and `./run bench NAME …` some rows of it. This command takes a few
minutes, and writes this page, its pictures and [its figures](performance.json):

```console
$ ./run bench --docs docs
```

## What is promised

{_markdown(promised)}

## Beside other ways

{_markdown(others)}

## How the cost grows

{pictures}

## How it is measured

Each row has two sides, hostrouting and another program. They run alternately, each in a fresh network
namespace; a check changes nothing, so it runs in one that stays. The benchmark verifies each run: it reads the
table back and compares it, and looks at the verdict. It also plants a fault, which the check must find. A ratio
is that of the medians. *cpu* is the ratio of the processor time of all processes that were started. Where the
machine was busy with something else, *cpu* says more.

The rows of the backend, the proof and the check are measured in a Python that runs already, from values to
values. Writing includes reading back by one dump what was written, which `ip -batch` doesn't do. The expected
CIDRs are spread over the table. A few of them lie inside an InfiniBand interface's prefix, and a more specific
route mends each. Boot scripts are measured from their start to their end, with mawk, Debian's awk, where there
is one. The other side reads and writes files, or nothing.

{chr(10).join(f"- {line}" for line in as_words(report))}
"""


def _markdown(results: list[Result]) -> str:
    lines = ["| | median | against | median | ratio | cpu | at most | |", "|---|---:|---|---:|---:|---:|---:|---|"]
    for result in results:
        what, median, _, against, other, _, ratio, cpu, most, words = _cells(result)
        notes = "; ".join(filter(None, [words, *result.notes]))
        cells = (what, median, f"`{against}`" if against.startswith("python3") else against, other)
        lines.append("| " + " | ".join((*cells, f"**{ratio}**" if ratio else "", cpu, most, notes)) + " |")
    return "\n".join(lines)
