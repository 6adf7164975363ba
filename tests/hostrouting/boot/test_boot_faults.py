"""A run that is killed or refused at any step leaves the old or the new state, and the next run repairs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import by_day


@pytest.mark.parametrize(("fault", "stories"), [("kill", by_day(4, by_night=7)), ("refuse", by_day(3, by_night=7))])
def test_a_fault_at_any_step_leaves_nothing_half_done(tmp_path: Path, fault: str, stories: int) -> None:
    program = Path(__file__).parents[2] / "support" / "crashing.py"
    done = subprocess.run([sys.executable, program, tmp_path, fault], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step for step in steps if step["violations"]] == [], done.stderr
    last = {step["story"]: step for step in steps}
    assert len(last) == stories
    assert {step["code"] for step in last.values()} == {0}
    assert all(step["step"] > 10 for step in last.values())
