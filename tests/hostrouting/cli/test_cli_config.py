"""Tests that ``hostrouting config set`` edits our keys in another component's file and preserves the rest of it."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import by_day

from hostrouting.cli.fixing import set_sections

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]

OURS: dict[str, Any] = {
    "hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}},
    "hostNetworking": {"loadBalancerProbe": {"enabled": True}},
}
AGENT = """{ "azure":{"token": "abc","a":[1.50, null,"ü"] },
\t"hostRouting": {"waitSeconds": 1}  ,
  "last":"\\u00fc" }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(OURS))
    return path


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Return a config file that contains an agent's token."""
    path = tmp_path / "config.json"
    path.write_text(AGENT)
    path.chmod(0o600)
    return path


def test_other_components_bytes_stay(run: Run, agents: Path, config: Path) -> None:
    assert run("config", "set", agents, "--from", config) == (0, f"replaced  {agents}\n", "")
    text = agents.read_text()
    assert text.startswith(AGENT.partition('{"waitSeconds"')[0])
    assert '  ,\n  "last":"\\u00fc"' in text
    assert json.loads(text) == json.loads(AGENT) | OURS


def test_mode_owner_and_link_stay(run: Run, agents: Path, config: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(agents, 12, 34)
    before, link = agents.stat(), tmp_path / "link.json"
    link.symlink_to(agents.name)
    assert run("config", "set", link, "--from", config)[0] == 0
    after = agents.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino, "it is replaced as a whole"
    assert sorted(each.name for each in tmp_path.glob("*.json")) == ["config.json", "link.json", "ours.json"]
    assert link.is_symlink()


def test_a_second_run_writes_nothing(run: Run, agents: Path, config: Path) -> None:
    run("config", "set", agents, "--from", config)
    before = agents.stat()
    assert run("config", "set", agents, "--from", config)[1] == "nothing to change\n"
    assert agents.stat() == before


def test_a_key_missing_from_config_stays(run: Run, agents: Path, config: Path) -> None:
    config.write_text(json.dumps({"hostNetworking": OURS["hostNetworking"], "other": 1}))
    assert run("config", "set", agents, "--from", config)[0] == 0
    assert json.loads(agents.read_text()) == json.loads(AGENT) | {"hostNetworking": OURS["hostNetworking"]}


def test_a_new_file_is_readable_by_its_owner_alone(run: Run, config: Path, tmp_path: Path) -> None:
    """Other components may add secrets to the file."""
    path = tmp_path / "new/config.json"
    assert run("config", "set", path, "--from", config)[:2] == (0, f"added     {path}\n")
    assert json.loads(path.read_text()) == OURS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_its_json_lists_the_changes(run: Run, agents: Path, config: Path) -> None:
    words = ("config", "set", agents, "--from", config, "--output", "json")
    done, again = (json.loads(run(*words)[1]) for _ in range(2))
    assert (done["changed"], done["files"]) == (True, [{"path": str(agents), "change": "replaced"}])
    assert (again["changed"], again["files"], again["host"]) == (False, [], os.uname().nodename)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[1]", '"hostRouting"', '{"hostRouting": {}, "hostRouting": {"waitSeconds": 1}}', '{"a": 1} x'],
)
def test_an_unsuitable_file_is_refused_and_stays(run: Run, agents: Path, config: Path, text: str) -> None:
    agents.write_text(text)
    code, out, err = run("config", "set", agents, "--from", config)
    assert (code, out, agents.read_text()) == (78, "", text)
    assert str(agents) in err


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"hostRouting": None},
        {"other": {}},
        {"hostRouting": {"mode": "STRICT"}},
        {"hostNetworking": {"loadBalancerProbe": {"enabled": 1}}},
    ],
)
def test_an_empty_or_wrong_config_is_refused(run: Run, agents: Path, config: Path, document: dict[str, Any]) -> None:
    config.write_text(json.dumps(document))
    assert run("config", "set", agents, "--from", config)[0] == 78
    assert agents.read_text() == AGENT


KEYS = st.sampled_from(["hostRouting", "hostNetworking", "a", "hostRoutin", '"', "\\", "ü", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=by_day(2, by_night=5000))
@given(
    others=st.dictionaries(KEYS, VALUES, max_size=5),
    ours=st.dictionaries(st.sampled_from([*OURS]), VALUES.filter(bool), min_size=1),
    indent=st.sampled_from([None, 0, 1, 4]),
    is_ascii=st.booleans(),
)
def test_other_components_keys_keep_their_meaning(
    tmp_path_factory: pytest.TempPathFactory,
    others: dict[str, Any],
    ours: dict[str, Any],
    indent: int | None,
    is_ascii: bool,
) -> None:
    path = tmp_path_factory.mktemp("any") / "config.json"
    path.write_text(json.dumps(others, indent=indent, ensure_ascii=is_ascii))
    set_sections(path, ours)
    assert json.loads(path.read_text()) == others | ours
