"""Whatever a watcher sees: each failure is said once as it comes and once as it goes; its metrics can be read back."""

from __future__ import annotations

import re
from ipaddress import IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.config import OverlapMode
from hostrouting.findings import Finding, FindingKind, OverlapReport, Verdict
from hostrouting.metrics import Counters, Metric, exposition, metrics_text
from hostrouting.model import NextHop, Route
from hostrouting.news import EventKind, Look, news, status
from hostrouting.patience import CONTESTED_LOSSES, Patience, Repair

CIDRS = tuple(map(IPv4Network, ("10.96.0.0/12", "172.16.0.0/16", "192.168.0.0/24")))
findings = st.builds(
    lambda kind, cidr, dev: Finding(
        kind, cidr, cidr[1], (dev,), ("eth0",), (cidr,), None, f"{kind}: expected CIDR {cidr} by {dev}"
    ),
    st.sampled_from(FindingKind),
    st.sampled_from(CIDRS),
    st.sampled_from(["ib0", "ib1"]),
)
judged = st.lists(findings, max_size=3, unique_by=lambda item: (item.kind, item.cidr, item.devs)).map(
    lambda items: OverlapReport(
        Verdict.OVERLAP if items else Verdict.OK,
        OverlapMode.WARN,
        "2026-01-01T00:00:00Z",
        ("eth0",),
        tuple(items),
        cidrs=CIDRS,
    )
)
unknown = st.sampled_from(["no-default-route", "check-failed: no memory"]).map(
    lambda reason: OverlapReport(Verdict.UNKNOWN, OverlapMode.WARN, "2026-01-01T00:00:00Z", reason=reason, cidrs=CIDRS)
)
repairs = st.builds(Repair, problem=st.sampled_from([None, None, "ib9 is missing"]))
looks = st.builds(Look, st.one_of(judged, judged, unknown), repairs)


def key(finding: Finding) -> str:
    return finding.message


@given(st.lists(looks))
def test_what_was_said_and_not_taken_back_is_what_fails(seen: list[Look]) -> None:
    before: Look | None = None
    said: list[str] = []
    for look in seen:
        now = look.after(before)
        events = news(before, now)
        for event in events:
            if event.kind is EventKind.FAILURE:
                said.append(event.message.partition(";")[0])
            elif event.kind is EventKind.FAILURE_GONE:
                said.remove(event.message.removeprefix("no longer so: "))
        assert sorted(said) == sorted(map(key, now.failing))
        assert news(now, now.after(now)) == ()
        assert "\n" not in status(now)
        before = now


routes = st.builds(
    lambda number: Route(IPv4Network((number << 8, 24)), (NextHop("eth0"),)), st.integers(0x0A0000, 0x0A0003)
)


@given(st.lists(st.tuples(st.floats(0, 1000), routes)))
def test_a_wait_never_shrinks_while_somebody_goes_on_and_ends_in_time(losses: list[tuple[float, Route]]) -> None:
    now, patience = 0.0, Patience()
    for seconds, route in losses:
        now += seconds
        before = patience.of(route)
        patience = patience.after([route], now)
        item = patience.of(route)
        assert item is not None
        assert item.is_contested == (item.count >= CONTESTED_LOSSES)
        assert patience.is_due(route, item.due)
        assert item.wait_seconds <= 300
        if before is not None and item.count > before.count:
            assert item.wait_seconds >= before.wait_seconds
        due = patience.next_due(now)
        assert due is None or 0 < due <= 300
    assert patience.after([], now + 10_000) == Patience()


# --- the exposition format -----------------------------------------------------------------------------------------

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')

_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parsed(text: str) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    """As https://prometheus.io/docs/instrumenting/exposition_formats/ tells."""
    assert text == "" or text.endswith("\n")
    samples = []
    for line in text.split("\n")[:-1]:
        if line.startswith("#"):
            assert re.match(r"# (HELP|TYPE) [a-zA-Z_:]", line)
            continue
        match = _SAMPLE.fullmatch(line)
        assert match is not None, line
        pairs = _LABEL.findall(match["labels"] or "")
        assert "".join(f'{name}="{value}",' for name, value in pairs).rstrip(",") == (match["labels"] or "")
        labels = tuple((name, re.sub(r"\\.", lambda found: _ESCAPES[found[0]], value)) for name, value in pairs)
        samples.append((match["name"], labels, float(match["value"])))
    return samples


label_names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
labels = st.lists(st.tuples(label_names, st.text()), max_size=3).map(tuple)
values = st.one_of(st.integers(0, 10**9).map(float), st.floats(allow_nan=False, allow_infinity=False))


@given(st.text(), st.lists(st.tuples(labels, values), min_size=1).map(tuple))
def test_whatever_the_labels_hold_the_samples_read_back(
    help_: str, samples: tuple[tuple[tuple[tuple[str, str], ...], float], ...]
) -> None:
    text = exposition([Metric("hostrouting_test", "gauge", help_, samples)])
    assert parsed(text) == [("hostrouting_test", found, value) for found, value in samples]


@given(looks)
def test_each_cidr_has_one_verdict_and_each_metric_its_help_and_type(look: Look) -> None:
    text = metrics_text(look.report, look.repair, Counters().after(look.repair), 1e9)
    samples = parsed(text)
    for cidr in CIDRS:
        values = [value for name, pairs, value in samples if ("cidr", str(cidr)) in pairs]
        assert sorted(values) == [0.0, 0.0, 1.0]
    for name in {name for name, _, _ in samples}:
        assert text.count(f"# HELP {name} ") == text.count(f"# TYPE {name} ") == 1
