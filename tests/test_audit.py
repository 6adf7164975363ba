"""Tests that the audit counts its comparisons and finds mistakes, and that its page contains the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from audit import __main__ as program
from audit import examine, sockets
from audit import run as running
from audit.examine import Audit, HostAudit
from audit.features import SEEN_FEATURES
from audit.figures import WAYS, Figures
from audit.hosts import FEATURES, Audited, hosts
from audit.page import as_table, rows, write_docs
from audit.run import audit, drawn, for_sockets
from audit.sockets import SocketAudit
from leaving import seen_leaving
from worlds import Question, World
from worlds.ipv6 import FEATURES6, World6

from hostrouting import ExpectedCidr, Verdict
from hostrouting.model.family import Family

if TYPE_CHECKING:
    from hostrouting import OverlapReport

DOCS = Path(__file__).parent.parent / "docs/explanation"


@pytest.fixture(scope="module")
def figures() -> Figures:
    return audit(100, 26, lambda _: None)


@pytest.mark.kernel
def test_a_few_hundred_lookups_are_right_and_counted(figures: Figures) -> None:
    plain = figures.plain
    assert figures.lookups >= 100
    assert plain.answers >= 2 * plain.lookups > 0
    # If a plain host gets a feature that a snapshot can't represent, it counts as odd. How often that happens depends
    # on Hypothesis.
    assert plain.worlds > 0 < figures.odd.worlds
    assert (plain.worlds + figures.odd.worlds) % 5 == 0
    assert figures.seen.features.total() > figures.seen.worlds > 0
    assert figures.seen.sockets >= 3 * figures.seen.lookups > 0
    assert plain.mistakes == 0
    assert plain.unknown.total() == 0
    assert plain.features.total() > plain.worlds
    assert figures.is_right
    assert figures.events.events.total() > 0
    assert figures.ipv6.features.total() > figures.ipv6.worlds > 0
    assert figures.ipv6.sockets > 3 * figures.ipv6.lookups > 0
    assert Figures.from_json(json.loads(json.dumps(figures.to_json()))) == figures


def test_the_same_name_draws_the_same_hosts() -> None:
    odd = hosts(is_odd=True)
    assert drawn("one", 3, odd) == drawn("one", 3, odd) != drawn("two", 3, odd)
    assert for_sockets("one", 3) == for_sockets("one", 3) != for_sockets("two", 3)


def _without_findings(report: OverlapReport) -> OverlapReport:
    return attrs.evolve(report, findings=())


def _judged_ok(report: OverlapReport | str) -> OverlapReport | str:
    return report if isinstance(report, str) else attrs.evolve(report, findings=(), verdict=Verdict.OK)


NICS = "".join(
    f"""
    ip link add {dev} type veth peer name peer-{dev}
    sysctl -qw net.ipv6.conf.peer-{dev}.disable_ipv6=1
    ip link set peer-{dev} up
    ip link set {dev} arp off up
    """
    for dev in ("eth0", "ib0")
)
SHADOWED = """
    ip address add 10.1.0.4/24 dev eth0
    ip address add 172.16.0.10/16 dev ib0
    ip route add default via 10.1.0.1 dev eth0
"""
SHADOWED6 = """
    ip address add 2001:db8:1::4/64 dev eth0 nodad
    ip address add fd00:172:16:7::9/64 dev ib0 nodad
    ip -6 route add default via fe80::1 dev eth0
"""


def shadowed(kind: type[Audit], family: Family) -> Audit:
    """Return an audit of a host whose ib0 shadows the expected CIDR."""
    lines = (NICS + (SHADOWED if family is Family.IPV4 else SHADOWED6)).splitlines()
    steps = tuple(filter(None, map(str.strip, lines)))
    if family is Family.IPV6:
        return kind(World6(1, steps, {"routeOverlap": {"expectedCidrs": ["fd00:172:16::/48"]}}), 16)
    expected = (ExpectedCidr("172.16.0.0/15"),)
    question = Question(World((), ()), expected) if kind is HostAudit else None
    return kind(Audited(steps, expected, connecting=question), 16)


AUDITS = [(HostAudit, Family.IPV4), (SocketAudit, Family.IPV4), (SocketAudit, Family.IPV6)]


@pytest.mark.kernel
@pytest.mark.parametrize(("kind", "family"), AUDITS)
def test_wrong_reports_are_found(
    kind: type[Audit],
    family: Family,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    live, on_snapshots = Audit._live, Audit._on_snapshots
    monkeypatch.setattr(Audit, "_live", lambda self: _without_findings(live(self)))
    monkeypatch.setattr(Audit, "_on_snapshots", lambda self: ((way, _judged_ok(it)) for way, it in on_snapshots(self)))
    monkeypatch.setattr(examine, "booted", lambda *_: [])
    monkeypatch.setattr(sockets, "booted", lambda *_: ["NO-ROUTE: expected CIDR 172.16.0.0/15 (probe 172.16.0.0) has"])
    monkeypatch.setattr(
        examine, "seen_leaving", lambda *given, **how: dict.fromkeys(seen_leaving(*given, **how), frozenset({"ib9"}))
    )
    host_audit, figures = shadowed(kind, family), Figures(seconds=1)
    running._examine(host_audit, figures)
    ways = WAYS if family is Family.IPV4 else ("live", "snapshot")
    assert all(host_audit.share.wrong[way] > 0 for way in ways)
    assert (host_audit.share.unseen > 0) is (kind is HostAudit)
    monkeypatch.setattr(program, "audit", lambda *_: figures)
    page = tmp_path / "explanation"
    page.mkdir()
    assert program.main(["1", "--seed", "3", "--docs", str(tmp_path)]) == 1
    assert Figures.from_json(json.loads((page / "audit.json").read_text())) == figures
    assert "ip link add eth0" in capsys.readouterr().out


@pytest.mark.kernel
@pytest.mark.parametrize(("kind", "family"), AUDITS)
@pytest.mark.parametrize("has_effect", [True, False])
def test_a_fix_without_effect_is_found(
    kind: type[Audit], family: Family, has_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_effect:
        monkeypatch.setattr(kind, "_install", lambda *_: "")
    host_audit = shadowed(kind, family)
    host_audit.run()
    assert host_audit.share.fixes == 1
    assert (host_audit.mistakes == []) is (host_audit.share.left == 0) is has_effect


@pytest.mark.kernel
def test_an_unknown_verdict_is_wrong_with_a_complete_snapshot() -> None:
    host_audit = shadowed(HostAudit, Family.IPV4)
    host_audit._doubt("snapshot", "check-failed: planted")
    assert host_audit.mistakes == ["snapshot: the verdict is unknown: check-failed: planted"]
    assert not Figures(plain=host_audit.share).is_right


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
    assert {*FEATURES6} <= {*figures.ipv6.features}
