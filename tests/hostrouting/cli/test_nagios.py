"""Tests that the Nagios output follows the Monitoring Plugins guidelines for exit codes and output."""

from __future__ import annotations

import json
import re
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import pytest
from wanted import lose_default_route

from hostrouting.model.routes import NextHop, Route
from hostrouting.testing import FakeKernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The format of performance data is 'label'=value[UOM];[warn];[crit];[min];[max]. Our only value is a count.
LINE = re.compile(r"HOSTROUTING (OK|WARNING|CRITICAL|UNKNOWN) - ([^|\n]+?)( \| failing=(\d+);(0?);(0?);0;(\d+))?\n")


@pytest.fixture
def plugin(run: Any) -> Callable[..., tuple[int, tuple[str | None, ...]]]:
    """Return a function that runs the plugin and returns its exit code and the parts of its output line."""

    def call(*words: object) -> tuple[int, tuple[str | None, ...]]:
        code, out, _ = run("check", "--output", "nagios", *words)
        match = LINE.fullmatch(out)
        assert match, out
        return code, match.groups()

    return call


def config(tmp_path: Path, mode: str, *cidrs: str) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": {"routeOverlap": {"expectedCidrs": cidrs, "mode": mode}}}))
    return path


def test_a_healthy_host_is_0(plugin: Any) -> None:
    code, (word, said, _, failing, _, _, count) = plugin("--cidr", "10.96.0.0/12", "--cidr", "10.1.2.0/24")
    assert (code, word, failing, count) == (0, "OK", "0", "2")
    assert said == "2 expected CIDRs leave by eth0"


@pytest.mark.parametrize(
    ("mode", "code", "word", "warn", "crit"), [("WARN", 1, "WARNING", "0", ""), ("STRICT", 2, "CRITICAL", "", "0")]
)
def test_failures_are_1_in_warn_and_2_in_strict(
    plugin: Any, tmp_path: Path, mode: str, code: int, word: str, warn: str, crit: str
) -> None:
    got, (status, said, _, *numbers) = plugin(config(tmp_path, mode, "172.16.0.0/16", "10.96.0.0/12"))
    assert (got, status) == (code, word)
    assert said.startswith("1 of 2 expected CIDRs fail: OVERLAP: expected CIDR 172.16.0.0/16 (probe 172.16.0.0) routes")
    assert numbers == ["1", warn, crit, "2"]


def test_without_a_default_route_it_is_3_at_once(plugin: Any, kernel: FakeKernel, tmp_path: Path) -> None:
    lose_default_route(kernel)
    code, (word, said, perfdata, *_) = plugin(config(tmp_path, "STRICT", "10.96.0.0/12"))  # waitSeconds is 30
    assert (code, word, perfdata) == (3, "UNKNOWN", None)
    assert "no-default-route" in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["none.json"], "none.json: there is no such file"),
        (["--cidr", "10.0.0.0/33"], "--cidr"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_other_errors_are_3_too(plugin: Any, words: list[str], why: str) -> None:
    code, (word, said, perfdata, *_) = plugin(*words)
    assert (code, word, perfdata) == (3, "UNKNOWN", None)
    assert why in said


def test_a_hostile_name_can_not_forge_performance_data(plugin: Any, kernel: FakeKernel) -> None:
    kernel.add_link("a|b=1\n")
    kernel.add_address("a|b=1\n", "192.168.7.1/24")
    code, (_, said, *_) = plugin("--cidr", "192.168.7.0/24")
    assert code == 1
    assert "a/b=1" in said


def test_a_long_line_is_truncated_before_its_performance_data(plugin: Any, kernel: FakeKernel) -> None:
    for number in range(0, 256, 2):
        route = Route(IPv4Network(f"192.168.{number}.0/24"), (NextHop("ib0"),))
        assert not kernel.add([route])
    code, (_, said, perfdata, *_) = plugin("--cidr", "192.168.0.0/16")
    assert code == 1
    assert perfdata is not None
    assert said.endswith("…")
    assert len(said) < 500
