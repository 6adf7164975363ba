"""Test how the Ansible collection reads the documents of commands, without a booted node.

tests/boot/test_roll_out.py runs the modules.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_trees import write_file
from wanted import lose_default_route, section

from hostrouting import Host
from hostrouting.testing import FakeKernel

COLLECTION = Path(__file__).parents[3] / "deploy/ansible/ansible_collections/hostrouting"
COMMAND = runpy.run_path(str(COLLECTION / "hostrouting/plugins/module_utils/command.py"))
Run = Callable[..., tuple[int, str, str]]

UNKEPT = "nvl* isn't kept: there is no such interface"
OUTPUT = ("--output", "json")


def warnings_of(run: Run, *words: object) -> list[str]:
    found: list[str] = COMMAND["warnings_of"](json.loads(run(*words)[1]))
    return found


@pytest.mark.parametrize(
    "words", [("plan",), ("apply",), ("apply", "--routes-only"), ("apply", "--try", "60")], ids=str
)
def test_the_notes_on_routes_are_warnings(
    run: Run, write: Callable[[object], Path], words: tuple[str, ...]
) -> None:
    given = write({"hostRouting": section("172.16.1.0/24", keep=["nvl*"], mode="WARN")})
    assert UNKEPT in warnings_of(run, *words, *OUTPUT, given)


@pytest.mark.parametrize(
    "words",
    [
        ("check", *OUTPUT, "CONFIG"),
        ("apply", *OUTPUT, "CONFIG"),
        ("confirm", *OUTPUT),
        ("snapshot",),
        ("config", "set", "COPY", "--from", "CONFIG", *OUTPUT),
        ("check", *OUTPUT, "MISSING"),
    ],
    ids=" ".join,
)
def test_a_document_without_notes_has_no_warnings(
    run: Run, write: Callable[[object], Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A failing check has none, either."""
    paths: dict[str, Any] = {name: tmp_path / name for name in ("COPY", "MISSING")}
    paths["CONFIG"] = write({"hostRouting": section()})
    assert warnings_of(run, *(paths.get(word, word) for word in words)) == []


def test_the_role_writes_the_config_before_a_confirmation_that_would_warn_of_it(
    run: Run, write: Callable[[object], Path], host: Host
) -> None:
    text = (COLLECTION / "hostrouting/roles/hostrouting/tasks/main.yml").read_text()
    assert text.index("hostrouting.config:") < text.index("hostrouting.confirm:")
    write_file(
        host.layout.config, json.dumps({"hostRouting": section("172.16.1.0/24", mode="WARN")})
    )
    given = write({"hostRouting": section("172.16.1.0/24", mode="STRICT")})
    for is_written in (False, True):
        run("apply", host.layout.config)
        assert run("apply", "--try", "60", given)[0] == 0
        if is_written:
            assert run("config", "set", host.layout.config, "--from", given)[0] == 0
        warnings = warnings_of(run, "confirm", *OUTPUT)
        assert any("the default CONFIG, asks" in each for each in warnings) is not is_written


def test_a_plan_that_apply_would_refuse_is_a_failure(
    run: Run, write: Callable[[object], Path], kernel: FakeKernel
) -> None:
    """A roll-out would otherwise skip the node as one on which nothing would change."""
    given = write({"hostRouting": section("172.16.1.0/24", {"destination": "10.9.0.0/16"})})

    def refusal() -> str:
        return str(COMMAND["refusal_of"](json.loads(run("plan", *OUTPUT, given)[1])))

    assert refusal() == ""
    kernel.ip("route add 10.9.0.0/16 via 10.1.0.9 dev eth0 proto static")
    assert "apply would fail: the static routes can't be installed" in refusal()
    lose_default_route(kernel)
    assert refusal() == ""


@pytest.mark.ci
@pytest.mark.parametrize("tag", ["warn", "strict"])
def test_a_roll_out_asks_for_the_config(tmp_path: Path, tag: str) -> None:
    pytest.importorskip("ansible", reason="Ansible isn't installed")
    play = str(Path(sys.executable).with_name("ansible-playbook"))
    nodes = str(write_file(tmp_path / "nodes", "n1 ansible_connection=local\n"))
    paths = {"ANSIBLE_COLLECTIONS_PATH": str(COLLECTION.parents[1]), "HOME": str(tmp_path)}
    words = ["-i", nodes, "hostrouting.hostrouting.roll_out", "--tags", tag]
    done = subprocess.run(
        [play, *words],
        env=os.environ | paths,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Set hostrouting_config, for example" in done.stdout) == (2, True)
