"""The benchmarks run, each side does what it is measured for, and the page says what was measured. No time is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from nightly import IS_NIGHTLY

from benchmarks.charts import growth_svg
from benchmarks.figures import Report
from benchmarks.growth import GROWTHS
from benchmarks.lines import code_lines
from benchmarks.options import parse
from benchmarks.page import as_table, write_docs
from benchmarks.rows import ROWS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs/explanation"

# By day one of each module's, and one growth.
NAMES = [*(row.name for row in ROWS), *GROWTHS]
TRIED = NAMES if IS_NIGHTLY else ["boot-check", "backend-10k", "memory", "wait-script", "judge", "growth-fib"]

SVG = "{http://www.w3.org/2000/svg}"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def report() -> Report:
    done = bench("--quick", "--json", *TRIED)
    assert done.returncode == 0, done.stderr
    return Report.from_json(json.loads(done.stdout))


@pytest.mark.ci
@pytest.mark.kernel
def test_every_row_runs_and_what_it_did_is_verified(report: Report) -> None:
    told = [*(result.name for result in report.results), *(growth.name for growth in report.growths)]
    assert told == [name for name in NAMES if name in TRIED]
    assert set(told) == set(TRIED)
    assert all(result.ours.median > 0 for result in report.results)


@pytest.mark.ci
@pytest.mark.kernel
def test_the_table_has_a_line_for_each_row(report: Report) -> None:
    lines = as_table(report).splitlines()
    for result in report.results:
        assert any(result.what in line and result.against in line for line in lines)


@pytest.mark.ci
@pytest.mark.kernel
def test_the_page_has_every_picture_and_each_is_a_document_that_says_it_in_words(
    report: Report, tmp_path: Path
) -> None:
    write_docs(report, tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert Report.from_json(json.loads((tmp_path / "performance.json").read_text())) == report
    for growth in report.growths:
        assert f"](performance-{growth.name}.svg)" in page
        description = ElementTree.fromstring(growth_svg(growth)).findtext(f"{SVG}desc")
        assert description is not None
        assert all(curve.name in description for curve in growth.curves)


def test_the_page_in_docs_is_what_its_figures_say(tmp_path: Path) -> None:
    write_docs(Report.from_json(json.loads((DOCS / "performance.json").read_text())), tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (DOCS / path.name).read_text(), "written by hand? ./run bench --docs docs"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in DOCS.glob("performance*")}


@pytest.mark.parametrize("arguments", [["no-such-row"], ["--docs", "docs", "proof"], ["--docs", "docs", "--quick"]])
def test_what_makes_no_sense_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.kernel
def test_what_it_measures_must_have_happened() -> None:
    program = "from benchmarks.worlds import World, routes_of\nwith World() as world:\n    world.expect(routes_of(1))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "WrongOutcomeError" in done.stderr


def test_lines_of_code_are_neither_blank_comment_nor_docstring() -> None:
    source = '''"""A module."""\n\n# Why.\nx = (\n    1,  # one\n\n)\n\ndef f():\n    """It\n    does."""\n    return """a\nb"""\n'''
    assert code_lines(source) == 6
