"""Rebuild public incidents, and compare what the check finds and the effect of its fixes with what
each file expects.

An expectation is what happened when the case was last looked at, good or bad, so that it can't
change unnoticed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from incident_files import FOLDER, documents, problem_of
from incident_outcomes import Outcome, outcome
from incidents import Case, Rebuilt
from needs import needs_linux

from hostrouting.kernel.release import separates_on_deletion

pytestmark = pytest.mark.kernel

CASES, HEALTHY = documents("cases"), documents("healthy")
REASONS = json.loads((FOLDER / "reasons.json").read_text())


def expected(document: dict[str, Any]) -> Outcome:
    return Outcome(**{key: tuple(value) for key, value in document["expect"].items()})


def to_paste(found: Outcome, file: str) -> str:
    """Return what to do about an outcome that a case's file doesn't expect."""
    kept = {
        key: value
        for key, value in attrs.asdict(found).items()
        if value or key in ("leaves", "says")
    }
    return f'if this is right, paste it into {file}:\n"expect": {json.dumps(kept)}'


def turned_round(told: Outcome) -> list[Outcome]:
    """Return expectations that say the opposite of one in a single point: found, fixed, harmed, or
    how it leaves.
    """
    return [
        attrs.evolve(told, leaves=("elsewhere", *told.leaves[1:])),
        attrs.evolve(told, says=() if told.says else ("OVERLAP eth0",)),
        attrs.evolve(told, fixes=() if told.fixes else ("route",)),
        attrs.evolve(told, breaks=() if told.breaks else ("route: moves 192.0.2.1",)),
    ]


def is_found(says: Iterable[str]) -> bool:
    return any(not each.startswith("note ") for each in says)


def problem_of_why(document: dict[str, Any], *, is_found: bool) -> str:
    """Return how to correct a case that lacks ``why``, or has one needlessly; else nothing."""
    if is_found == ("why" not in document):
        return ""
    if is_found:
        return "the check finds this incident: delete why"
    return f"the check doesn't find this incident: add why, one of {', '.join(REASONS)}"


@pytest.mark.parametrize("name", CASES)
def test_an_incident_ends_as_its_file_expects(name: str, tmp_path: Path) -> None:
    document = CASES[name]
    case, told = Case.of(document), expected(document)
    if any(line.startswith("unplug") for line in case.host):
        needs_linux(6, 12, "an interface without a carrier passes packets to packet sockets")
    words = [line.split()[:2] for line in case.host]
    if (
        ["rule", "del"] in words
        and ["rule", "add"] not in words
        and not separates_on_deletion(os.uname().release)
    ):
        pytest.skip(
            "this kernel finds the entries of a table whose rule is gone until a rule is added"
        )
    found = outcome(case, tmp_path)
    assert found == told, to_paste(found, f"tests/incidents/cases/{name}.json")
    assert found not in turned_round(told)
    wrong = [
        way for probe, way in zip(case.probes, found.leaves, strict=True) if way != probe.expected
    ]
    assert wrong, "all probes leave as they should: it belongs into tests/incidents/healthy"
    assert problem_of_why(document, is_found=is_found(found.says)) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"class": "bridges"}, "class 'bridges' isn't a key of classes.json"),
        ({"why": "luck"}, "why 'luck' isn't a key of reasons.json"),
        ({"dat": "2026-06-05"}, "unknown field dat; expected one of source, date, class"),
        ({"date": "June"}, "date is 'June'; expected a date such as 2026-06-05, or unknown"),
        ({"source": "a thread"}, "source is 'a thread'; expected OWNER/REPOSITORY#NUMBER or a URL"),
        ({"cause": ""}, "cause is ''; expected a text"),
        ({"probes": {}}, "probes is {}; expected a list"),
        ({"owner": {"does": []}}, "owner.advised is missing; expected a text"),
        ({"probes": ["eth0"]}, "probes[0] is 'eth0'; expected an object"),
        (
            {"probes": [{"to": "10.0.0.1", "through": "eth0", "form": "10.1.0.4"}]},
            "unknown field probes[0].form; expected one of to, through, via, source, from, in, mtu",
        ),
        ({"probes": [{"to": "10.0.0.1"}]}, "probes[0].through is missing; expected a text"),
        (
            {"probes": [{"to": "10.0.0.1", "through": "eth0", "uid": "0"}]},
            "probes[0].uid is '0'; expected a number",
        ),
        (
            {"expect": {"leaves": [], "say": []}},
            "unknown field expect.say; expected one of leaves, says, fixes, breaks",
        ),
        ({"expect": {"leaves": []}}, "expect.says is missing; expected a list"),
    ],
)
def test_a_wrong_field_of_an_incident_is_named(change: dict[str, Any], problem: str) -> None:
    (document, *_) = CASES.values()
    assert problem_of(document, "cases") == ""
    assert problem_of(document | change, "cases").startswith(problem)


@pytest.mark.parametrize("why", [{}, {"why": "small"}], ids=["without", "with"])
def test_a_why_that_is_missing_or_superfluous_is_named(why: dict[str, str]) -> None:
    assert problem_of_why(why, is_found=not why) == ""
    wrong = problem_of_why(why, is_found=bool(why))
    assert wrong.startswith("the check ")
    assert wrong.endswith("delete why" if why else ", ".join(REASONS))


def test_most_incidents_are_found_and_fixed() -> None:
    """Count what the files expect, each of which a test above verifies."""
    in_scope = [
        document["expect"]
        for document in CASES.values()
        if "why" not in document or REASONS[document["why"]]["in_scope"]
    ]
    found = [expect for expect in in_scope if is_found(expect["says"])]
    fixed = [expect for expect in found if "fixes" in expect]
    assert len(CASES) >= 130
    assert len(found) / len(in_scope) >= 0.92
    assert len(fixed) / len(in_scope) >= 0.85
    assert [name for name, each in CASES.items() if "breaks" in each["expect"]] == []


@pytest.mark.parametrize("name", HEALTHY)
def test_no_fix_moves_traffic_of_a_healthy_host(name: str, tmp_path: Path) -> None:
    document = HEALTHY[name]
    case, told = Case.of(document), expected(document)
    found = outcome(case, tmp_path)
    assert found == told, to_paste(found, f"tests/incidents/healthy/{name}.json")
    assert found not in turned_round(told)
    assert found.leaves == tuple(probe.expected for probe in case.probes)
    assert found.breaks == ()
    with Rebuilt(case, tmp_path) as host:
        assert host.check(**document["named"]).verdict == "ok"
        assert host.check_verified(*document["named"]["uplinks"]).verdict == "ok"
