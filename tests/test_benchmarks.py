"""Tests that the benchmarks run, that both sides of a comparison do their work, and that the page
has the figures.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from nightly import IS_NIGHTLY

from benchmarks.__main__ import NAMES, parse
from benchmarks.figures import Measured, Report
from benchmarks.growth import GROWTHS
from benchmarks.measure import Span
from benchmarks.page import as_table, write_docs
from benchmarks.rows import ROWS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs/contributing"

# All rows are tried only in nightly runs.
TRIED = (
    NAMES
    if IS_NIGHTLY
    else ["boot-check", "backend-10k", "memory", "wait-script", "judge", "growth-fib"]
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        program, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.fixture(scope="module")
def report() -> Report:
    done = bench("--quick", "--json", *TRIED)
    assert done.returncode == 0, done.stderr
    return Report.from_json(done.stdout)


@pytest.mark.ci
@pytest.mark.kernel
def test_every_row_runs_and_its_work_is_verified(report: Report) -> None:
    assert [*report.rows, *report.growths] == [name for name in NAMES if name in TRIED]
    assert all(measured.medians[0] > 0 for measured in report.rows.values())


@pytest.mark.ci
@pytest.mark.kernel
def test_the_table_has_a_line_for_each_row(report: Report) -> None:
    lines = as_table(report).splitlines()
    for row in ROWS:
        assert (row.name in report.rows) == any(
            f"| {row.what} " in line and row.against in line for line in lines
        )


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    measured = Measured(
        [(Span(1, 4), Span(1, 1)), (Span(4, 1), Span(2, 1)), (Span(30, 2), Span(10, 1))]
    )
    assert measured.medians == [4, 2]
    assert measured.ratios == [2, 2]
    assert Measured([(Span(1),), (Span(3),)]).ratios == []


def labels(picture: Path) -> set[str]:
    """Return a chart's screen reader labels, which contain the figures for each point."""
    return {element.get("aria-label", "") for element in ElementTree.parse(picture).iter()}


@pytest.mark.ci
def test_the_page_in_docs_has_its_figures(tmp_path: Path) -> None:
    report = Report.from_json((DOCS / "performance.json").read_text())
    write_docs(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in DOCS.glob("performance*")
    }
    for path in tmp_path.iterdir():
        read = labels if path.suffix == ".svg" else Path.read_text
        assert read(path) == read(DOCS / path.name), "written by hand? ./run bench --docs docs"
    assert [*report.rows, *report.growths] == list(NAMES)
    for growth in GROWTHS:
        said = labels(DOCS / f"performance-{growth.name}.svg")
        for way, points in report.growths[growth.name].items():
            assert len([label for label in said if label.endswith(f"; way: {way}")]) == len(points)


@pytest.mark.parametrize(
    "arguments", [["no-such-row"], ["--docs", "docs", "proof"], ["--docs", "docs", "--quick"]]
)
def test_senseless_arguments_are_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.kernel
def test_a_contender_that_does_nothing_is_an_error() -> None:
    program = (
        "from benchmarks.worlds import World, routes_of\n"
        "with World() as world:\n    world.expect(routes_of(1))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "WrongOutcomeError" in done.stderr
