"""The audit counts its comparisons and finds mistakes, and its page shows the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asking
import attrs
import connecting
import pytest
from audit import __main__ as program
from audit import examine, sockets
from audit import run as running
from audit.features import SEEN_FEATURES
from audit.figures import WAYS, Figures
from audit.hosts import FEATURES, hosts
from audit.page import as_table, rows, write_docs
from audit.run import audit, drawn, for_sockets

from hostrouting import Verdict
from hostrouting.overlap.findings import UnknownReason

if TYPE_CHECKING:
    from hostrouting import OverlapReport

DOCS = Path(__file__).parent.parent / "docs/explanation"


# The size of a block: its odd hosts, the hosts that sockets judge, the hosts with events, and the addresses of a host.
FEW = (1, 2, 1, 64)


@pytest.fixture(scope="module")
def figures() -> Figures:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "_FEW", FEW)
        return audit(100, 26, lambda _: None)


@pytest.mark.kernel
def test_a_few_hundred_lookups_are_right_and_counted(figures: Figures) -> None:
    plain = figures.plain
    assert figures.lookups >= 100
    assert plain.answers >= 2 * plain.lookups > 0
    # A plain host may get a feature that a snapshot can't represent, and then it counts as odd. Hypothesis decides how
    # often that happens.
    assert plain.worlds > 0 < figures.odd.worlds
    assert (plain.worlds + figures.odd.worlds) % (5 * FEW[0]) == 0
    assert figures.seen.features.total() > figures.seen.worlds > 0
    assert figures.seen.sockets >= 3 * figures.seen.lookups > 0
    assert plain.mistakes == 0
    assert plain.unknown.total() == 0
    assert plain.features.total() > plain.worlds
    assert figures.is_right
    assert figures.events.events.total() > 0
    assert Figures.from_json(json.loads(json.dumps(figures.to_json()))) == figures


def test_the_same_name_draws_the_same_hosts() -> None:
    odd = hosts(is_odd=True)
    assert drawn("one", 3, odd) == drawn("one", 3, odd) != drawn("two", 3, odd)
    assert for_sockets("one", 3) == for_sockets("one", 3) != for_sockets("two", 3)


# The original functions, which some tests replace.
_checked, _seen_leaving = asking.checked, connecting.seen_leaving


def _without_findings(*arguments: Any) -> tuple[Any, OverlapReport]:
    config, report = _checked(*arguments)
    return config, attrs.evolve(report, findings=()) if report.verdict != "unknown" else report


def _unknown(*arguments: Any) -> tuple[Any, OverlapReport]:
    config, report = _checked(*arguments)
    kind = UnknownReason.CHECK_FAILED
    return config, attrs.evolve(report, verdict=Verdict.UNKNOWN, reason_kind=kind, reason_detail="planted")


@pytest.mark.kernel
def test_wrong_verdicts_fixes_and_sockets_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(examine, "checked", _without_findings)
    for module in (examine, sockets):
        monkeypatch.setattr(module, "booted", lambda *_: [])
    monkeypatch.setattr(examine, "install", lambda *_: None)
    monkeypatch.setattr(
        examine, "seen_leaving", lambda question: dict.fromkeys(_seen_leaving(question), frozenset({"ib9"}))
    )
    page = tmp_path / "explanation"
    page.mkdir()
    assert program.main(["1", "--seed", "3", "--docs", str(tmp_path)]) == 1
    figures = Figures.from_json(json.loads((page / "audit.json").read_text()))
    plain = figures.plain
    assert all(share.wrong[way] > 0 for share in (plain, figures.seen) for way in WAYS)
    assert plain.left > 0
    assert plain.unseen > 0
    assert "ip link add eth0" in capsys.readouterr().out


@pytest.mark.kernel
def test_an_unknown_verdict_is_wrong_with_a_complete_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "checked", _unknown)
    for module in (examine, sockets):
        monkeypatch.setattr(module, "booted", lambda *_: ["check-failed: planted"])
    monkeypatch.setattr(running, "_FEW", FEW)
    figures = audit(1, 1, lambda _: None)
    assert set(figures.plain.unknown) == {f"{way}: check-failed: planted" for way in WAYS}
    assert not figures.is_right


@pytest.mark.kernel
def test_the_table_has_a_line_for_each_figure(figures: Figures) -> None:
    figures.made = {"made": "today"}
    lines = as_table(figures).splitlines()
    for words, counts in rows(figures):
        numbers = [f"{count:,}" for count in counts]
        assert any(line.startswith(words) and line.removeprefix(words).split() == numbers for line in lines)


def test_the_page_in_docs_has_every_feature(tmp_path: Path) -> None:
    figures = Figures.from_json(json.loads((DOCS / "audit.json").read_text()))
    write_docs(figures, tmp_path)
    for name in ("audit.md", "audit.json"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), "written by hand? ./run audit --docs docs"
    assert figures.lookups >= program.MILLION
    had = {name for share in figures.shares for name in share.features}
    assert {*FEATURES, *SEEN_FEATURES} <= had
