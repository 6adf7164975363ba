"""The table of a run for a terminal, and a page of the docs with the table and charts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.figures import Curves, Growth, Measured, Report, Row
from benchmarks.growth import GROWTHS
from benchmarks.rows import ROWS

_HEADINGS = ("", "median", "against", "median", "ratio", "cpu", "at most", "notes")
_NUMBERS = (1, 3, 4, 5, 6)


def as_table(report: Report, rows: Iterable[Row] = ROWS) -> str:
    """Return a Markdown table of the measured rows, aligned for a terminal."""
    table = [
        _HEADINGS,
        *(_cells(row, report.rows[row.name]) for row in rows if row.name in report.rows),
    ]
    widths = [max(3, *map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        [
            cell.rjust(width) if at in _NUMBERS else cell.ljust(width)
            for at, (cell, width) in enumerate(cells)
        ]
        for cells in (zip(row, widths, strict=True) for row in table)
    ]
    lines.insert(1, ["-" * (width - 1) + ("-:"[at in _NUMBERS]) for at, width in enumerate(widths)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Row, measured: Measured) -> tuple[str, ...]:
    ours, *theirs = (_value(row, median) for median in measured.medians)
    ratios = [f"{_short(ratio)}x" for ratio in measured.ratios]
    most = "" if row.most is None else f"{row.most:g}x" if row.against else _value(row, row.most)
    return (
        row.what,
        ours,
        row.against,
        *(theirs or [""]),
        *[*ratios, "", ""][:2],
        most,
        "; ".join(measured.notes),
    )


def _value(row: Row, value: float) -> str:
    return f"{_short(value / 2**20)} MiB" if row.is_memory else f"{_short(value * 1e3)} ms"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def as_words(report: Report) -> str:
    """Return a sentence that describes the machine and its load."""
    return "\n".join(f"- {what}: {words}" for what, words in report.made.items())


def write_docs(report: Report, folder: Path) -> None:
    """Write the page, its charts and their figures.

    Args:
        report: the results of a complete run.
        folder: the folder for ``performance.md``, ``performance.json`` and an image of each chart.
    """
    (folder / "performance.json").write_text(report.to_json())
    for growth in GROWTHS:
        (folder / f"performance-{growth.name}.svg").write_text(
            _picture(growth, report.growths[growth.name])
        )
    pictures = "\n\n".join(
        f"![{growth.title}](performance-{growth.name}.svg)" for growth in GROWTHS
    )
    (folder / "performance.md").write_text(f"""# Performance

`./run bench` prints these tables, and `./run bench NAME …` prints the rows that you name. This
command takes a few minutes, and generates this page, its pictures and [its
figures](performance.json):

```console
$ ./run bench --docs docs
```

[Compared with other programs](compared.md) shows what systemd-networkd, netplan, NetworkManager,
FRR and BIRD do with the same routes, and what they cost.

## Compared with the fastest alternative

{as_table(report, [row for row in ROWS if row.most is not None])}

## Compared with other alternatives

{as_table(report, [row for row in ROWS if row.most is None])}

## How the cost grows

{pictures}

## How it is measured

Each row compares hostrouting with another program. In each round, both run one after the other,
each in a new network namespace; checks change nothing, so they share one. The benchmark verifies
each run: it reads the table back and compares it, and checks the verdict. It also adds an overlap,
which the check must find. *Ratio* is the median of the rounds' ratios, and *at most* is its limit.
*cpu* is the same ratio for the CPU time of all processes that were started. If the machine was busy
with something else, *cpu* is more reliable.

The rows for the backend, the verification and the check are measured inside a running Python
process, excluding input and output. Writing includes reading the routes back with one dump, which
`ip -batch` doesn't do. The expected CIDRs are spread over the table. A few of them are inside an
InfiniBand interface's prefix, and a more specific route fixes each. Boot scripts are measured from
start to end, with mawk, Debian's awk, if it is available. The other program reads and writes files,
or has neither input nor output.

{as_words(report)}
""")


def _picture(growth: Growth, curves: Curves) -> str:
    # Imported here to keep a JavaScript engine out of the processes of measurements.
    from vl_convert import vegalite_to_svg

    points: list[dict[str, Any]] = [
        {"way": way, growth.size: size, "seconds": seconds}
        for way, curve in curves.items()
        for size, seconds in curve
    ]

    def axis(field: str, form: str) -> dict[str, Any]:
        values = [point[field] for point in points]
        decades = [
            10.0**power
            for power in range(-6, 7)
            if min(values) / 10 < 10.0**power < max(values) * 10
        ]
        scale = {"type": "log", "domain": [decades[0], decades[-1]]}
        return {
            "field": field,
            "type": "quantitative",
            "scale": scale,
            "axis": {"values": decades, "format": form},
        }

    colour = {"field": "way", "type": "nominal", "sort": None, "title": None}
    look = {
        "width": 520,
        "height": 300,
        "padding": 12,
        "background": "white",
        "mark": {"type": "line", "point": True},
    }
    encoding = {"x": axis(growth.size, ",d"), "y": axis("seconds", "~s"), "color": colour}
    return (
        vegalite_to_svg(
            {"title": growth.title, "data": {"values": points}, "encoding": encoding, **look}
        )
        + "\n"
    )
