"""Tests that the page about other programs says what its results support, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.cases import CASES as OBSERVED
from benchmarks.peers.command import parse
from benchmarks.peers.page import CASES, STEPS, page, strengths
from benchmarks.peers.programs import PEERS

DOCS = Path(__file__).parents[1] / "docs/contributing"

HEALED = {"during": 0, "itself": 0.1, "next": True}
LOST = {"during": 0, "itself": None, "next": True}
SAID = {"exit": 1, "said": "the command"}


def peer(name: str, cpu: float, *, there: int = 20, **cases: dict[str, Any]) -> dict[str, Any]:
    step = {"cpu": cpu, "complete": 0.5, "writes": 20, "memory": 2**20}
    a_round = {f"20 {name}": {**step, "there": 0 if name == "remove" else there} for name in STEPS}
    return {"name": name, "version": "1", "error": "", "rounds": [a_round] * 2, "cases": cases}


def record(**peers: dict[str, Any]) -> dict[str, Any]:
    made = {
        "made": "2026-01-01",
        "minutes": 2.0,
        "kernel": "Linux 6.12, 2 cores",
        "load": [0.1, 0.9],
        "sizes": [20],
    }
    return {**made, "peers": peers}


def test_the_page_in_docs_has_its_figures() -> None:
    found = json.loads((DOCS / "compared.json").read_text())
    assert page(found) == (DOCS / "compared.md").read_text(), (
        "written by hand? ./run bench peers --docs docs"
    )
    assert list(found["peers"]) == list(PEERS)
    assert found["sizes"] == [1000, 10_000]
    assert found["minutes"] < 30


def test_the_page_has_words_for_each_case() -> None:
    assert {case.__name__ for case in OBSERVED} == set(CASES)


def test_a_strength_is_what_was_observed_of_only_the_other() -> None:
    ours = peer("ours", 0.2, deleted=LOST, link=LOST, shadow=SAID)
    found = record(apply=ours, bird=peer("BIRD", 0.01, deleted=HEALED, link=LOST, shadow=SAID))
    cheaper, *rest = strengths(found, "bird")
    assert "4 of 4" in cheaper
    assert "20.0 times" in cheaper
    assert rest == [CASES["deleted"].phrase]
    assert strengths(record(apply=ours, bird=peer("BIRD", 0.3, deleted=LOST)), "bird") == []


def test_a_part_of_the_routes_costs_nothing_less() -> None:
    found = record(apply=peer("ours", 0.2), networkd=peer("networkd", 0.1, there=8))
    assert strengths(found, "networkd") == []
    assert "8 of 20" in page(found)


def test_less_is_less_in_every_round() -> None:
    ours, bird = peer("ours", 0.2), peer("BIRD", 0.1)
    bird["rounds"] = [peer("BIRD", cpu)["rounds"][0] for cpu in (0.1, 0.1, 0.25)]
    assert strengths(record(apply=ours, bird=bird), "bird") == []


def test_a_case_that_failed_is_no_strength() -> None:
    found = record(
        apply=peer("ours", 0.2, deleted=LOST),
        bird=peer("BIRD", 0.3, deleted={"failed": "no answer"}),
    )
    assert strengths(found, "bird") == []
    assert "failed: no answer" in page(found)


def test_a_program_that_cannot_be_had_is_on_the_page() -> None:
    absent = peer("FRR", 0.1) | {"rounds": [], "error": "no such package"}
    found = record(apply=peer("ours", 0.2), frr=absent)
    assert strengths(found, "frr") == []
    assert "- **FRR** wasn't measured" in page(found)
    rows = [line for line in page(found).splitlines() if line.startswith("| FRR | 0 |")]
    assert len(rows) == 1
    assert "no such package" in page(found)


@pytest.mark.parametrize("load", [0.1, 1.5])
def test_other_work_of_the_machine_is_on_the_page(load: float) -> None:
    found = record(apply=peer("ours", 0.2)) | {"load": [load, 0.9]}
    assert ("did other work" in page(found)) == (load > 1)


@pytest.mark.parametrize(
    "arguments", [["no-such-peer"], ["--docs", "docs", "bird"], ["--docs", "docs", "--quick"]]
)
def test_senseless_arguments_are_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
