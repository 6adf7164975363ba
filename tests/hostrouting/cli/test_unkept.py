"""Tests that ``fix`` keeps InfiniBand in whatever order its routes were installed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emergency import delete_printed
from node import add_nics
from wanted import section

from hostrouting import Config, Host, Verdict, check
from hostrouting.testing import FakeKernel

pytestmark = pytest.mark.usefixtures("judged_here")

Run = Callable[..., tuple[int, str, str]]

EXPECTED = "172.16.0.0/16"
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
BARE = {"hostRouting": section(*HALVES, cidrs=[EXPECTED])}
FIXED = {"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib0"])}
ADD_KEEP = 'fix: add to hostRouting.staticRoutes.keep:\n  "ib0"\n'
TAKEN = f"packets from the addresses of ib0 no longer go to {' '.join(HALVES)} through ib0"


def nothing_installed(run: Run, write: Any) -> Path:
    path: Path = write({"hostRouting": section(cidrs=[EXPECTED])})
    return path


def without_keep(run: Run, write: Any) -> Path:
    path: Path = write(BARE)
    assert run("apply", path)[0] == 0
    return path


def with_keep(run: Run, write: Any) -> Path:
    path: Path = write(FIXED)
    assert run("apply", path)[0] == 0
    return path


def held_start(run: Run, write: Any) -> Path:
    path = nothing_installed(run, write)
    assert run("apply", path)[0] == 1
    return path


STATES = [nothing_installed, without_keep, with_keep, held_start]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_what_fix_prints_is_what_it_writes_and_keeps_infiniband(
    run: Run, write: Any, kernel: FakeKernel, state: Callable[[Run, Any], Path]
) -> None:
    path = state(run, write)
    code, out, err = run("fix", path)
    assert code == 0
    written, said = run("fix", "--in-place", path)[1:]
    assert json.loads(path.read_text()) == json.loads(out)
    assert json.loads(out)["hostRouting"]["staticRoutes"]["keep"] == ["ib0"]
    is_written = written.startswith("replaced")
    assert (is_written, ADD_KEEP in said) == (
        (False, False) if state is with_keep else (True, True)
    )
    assert ("to keep them on ib0, add" in err + said) is False, "the entry is added already"

    assert run("apply", path)[0] == 0
    sources = [str(rule.source) for rule in kernel.facts().rules if rule.source is not None]
    assert sources == ["172.16.0.10/32"]
    assert run("fix", "--in-place", path)[1:] == (
        "nothing to change\n",
        "nothing fails: there is nothing to fix\n",
    )


def test_check_and_doctor_tell_the_keep_that_fix_would_write(
    run: Run, write: Any, host: Host
) -> None:
    path = without_keep(run, write)
    report = check(Config.from_mapping(BARE), host=host)
    assert report.verdict is Verdict.OK
    assert [entry.dev for entry in report.fix.keep] == ["ib0"]
    code, out, _ = run("check", path)
    assert (code, ADD_KEEP in out, f"caution: {TAKEN}" in out) == (0, True, True)
    told = json.loads(run("doctor", path, "--output", "json")[1])
    (finding,) = [each for each in told["findings"] if each["kind"] == "unkept"]
    assert (finding["severity"], finding["subject"]) == ("risk", "ib0")
    assert TAKEN in finding["message"]
    assert finding["hint"] == f"hostrouting fix --in-place {path} && hostrouting apply {path}"
    run("fix", "--in-place", path)
    run("apply", path)
    assert ADD_KEEP not in run("check", path)[1]
    assert "unkept" not in run("doctor", path, "--output", "json")[1]


def test_a_second_nic_is_offered_and_infiniband_is_fixed(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Only its owner knows if eth1 is meant."""
    add_nics(kernel, eth1="10.100.0.5/24")
    cidrs = [EXPECTED, "10.100.0.128/25"]
    path = write({"hostRouting": section(*HALVES, "10.100.0.128/25", cidrs=cidrs)})
    assert run("apply", path)[0] == 0
    _, _, err = run("fix", "--in-place", path)
    assert json.loads(path.read_text())["hostRouting"]["staticRoutes"]["keep"] == ["ib0"]
    offered = re.findall(r"packets from \S+ \((\w+)\)", err)
    assert offered == ["eth1"]


def test_printed_rules_are_told_while_a_cidr_fails(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """An operator deletes the emergency's routes and forgets its rules, or the other way round."""
    path = nothing_installed(run, write)
    for line in run("fix", "--format", "ip", path)[1].splitlines():
        if (line.startswith("ip -4") and "table 2170000" in line) or (
            " rule " in line and line[0] != "#"
        ):
            kernel.ip(line.removeprefix("ip -4 "))
    told = "the next boot has none of what hostrouting fix --format ip printed"
    for words in (["check"], ["fix"], ["plan"], ["check", "--output", "nagios"]):
        assert told in "".join(run(*words, path)[1:]), words
    assert run("fix", "--in-place", path)[0] == 0
    assert json.loads(path.read_text())["hostRouting"]["staticRoutes"]["keep"] == ["ib0"]


def test_routes_that_stand_in_for_ours_are_named(run: Run, write: Any, kernel: FakeKernel) -> None:
    """They do, until the default route gets another gateway."""
    for half in HALVES:
        kernel.ip(f"route add {half} via 10.1.0.1 dev eth0 proto static")
    path = write(FIXED)
    assert run("apply", path)[0] == 0

    def found() -> list[dict[str, str]]:
        told = json.loads(run("doctor", path, "--output", "json")[1])
        return [each for each in told["findings"] if each["kind"] == "route-of-another"]

    (finding,) = found()
    assert finding["severity"] == "risk"
    commands = re.findall(r"ip -4 (route del [^&;]*)", finding["hint"])
    assert len(commands) == len(HALVES)
    for command in commands:
        kernel.ip(command)
    assert run("apply", path)[0] == 0
    assert found() == []
    kernel.ip("route replace default via 10.1.0.2 dev eth0")
    assert run("apply", path)[0] == 0


def test_printed_rules_of_many_addresses_are_one_refusal(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    for number in range(1, 8):
        kernel.ip(f"link add ib{number}")
        kernel.ip(f"link set ib{number} up")
        kernel.add_address(f"ib{number}", f"172.16.0.{10 + number}/16")
    for line in run("fix", "--format", "ip", nothing_installed(run, write))[1].splitlines():
        if not line.startswith("#"):
            kernel.ip(line.removeprefix("ip -4 "))
    path = write({"hostRouting": section(*HALVES, cidrs=[EXPECTED], keep=["ib*"])})
    code, _, err = run("apply", path)
    assert (code, err.count("can't keep"), err.count("hint: ")) == (1, 1, 1)
    delete_printed(kernel, err)
    assert run("apply", path)[0] == 0


def test_a_check_during_a_trial_says_so(run: Run, write: Any) -> None:
    path = with_keep(run, write)
    told = "a trial is in progress until "
    for words in (["check"], ["fix"], ["check", "--output", "nagios"]):
        assert told not in "".join(run(*words, path)[1:])
    assert run("apply", "--try", "60", path)[0] == 0
    for words in (["check"], ["fix"], ["check", "--output", "nagios"]):
        assert told in "".join(run(*words, path)[1:]), words
    assert run("check", path, "--output", "nagios")[0] == 1


def test_each_caution_above_is_counted(run: Run, write: Any, kernel: FakeKernel) -> None:
    kernel.ip("route add default via 172.16.0.9 dev ib0 metric 50")
    kernel.ip("route add 10.9.0.0/16 dev ib0 metric 7")
    path = write({"hostRouting": section(cidrs=[EXPECTED]) | {"uplinks": ["eth0"]}})
    _, out, err = run("fix", "--in-place", path)
    told = err.count("caution: ")
    pointer = "read the caution above" if told == 1 else f"read the {told} cautions above"
    assert pointer in out
