"""The check against brute force: on random hosts failures and notes are right for every address of every CIDR."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brute_force import Judge, disagreements, judged, sort_all
from hypothesis import HealthCheck, given, settings
from worlds import Question, questions

import phases
from hostrouting import Config, Host, Layout
from hostrouting.backends.memory import FakeKernel
from hostrouting.backends.namespace import NamespaceKernel, enter_namespace
from hostrouting.check import check_overlap
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from hostrouting import OverlapReport
    from hostrouting.backends import Kernel

_IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
_SETTINGS = settings(
    max_examples=int(os.environ.get("BRUTE_N", 0)) or (5000 if _IS_NIGHTLY else 60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def checked(kernel: Kernel, question: Question, **more: Any) -> tuple[Config, OverlapReport]:
    overlap = {
        "expectedCidrs": [str(cidr) for cidr in question.cidrs],
        "allowedDevs": list(question.allowed),
        "foreseen": [str(prefix) for prefix in question.foreseen],
    }
    config = Config.from_mapping({"hostRouting": {"routeOverlap": overlap | more, "waitSeconds": 0}})
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(Path("/nonexistent")))
    return config, check_overlap(config, host, phases.CancelScope())


def compare(kernel: Kernel, question: Question) -> None:
    """Hold the check of a host to brute force."""
    question.world.build(kernel)
    config, report = checked(kernel, question)
    judge = Judge(kernel, config.route_overlap, had_rules=bool(question.world.rules))
    if judge.default is None:
        assert report.verdict == "unknown"
        return
    sorts = {cidr: sort_all(kernel, judge, judged(cidr)) for cidr in question.cidrs}
    if wrong := disagreements(report, judge, sorts):
        entries = "\n  ".join(map(str, (*kernel.routes(), *kernel.rules())))
        raise AssertionError("\n".join(wrong) + f"\n\n  {entries}")


@settings(_SETTINGS)
@given(question=questions())
def test_in_memory_each_address_is_judged_as_brute_force_does(question: Question) -> None:
    compare(FakeKernel(), question)


@pytest.mark.kernel
@settings(_SETTINGS)
@given(question=questions(has_objects=True))
def test_on_linux_each_address_is_judged_as_brute_force_does(question: Question) -> None:
    enter_namespace()
    compare(NamespaceKernel(), question)
