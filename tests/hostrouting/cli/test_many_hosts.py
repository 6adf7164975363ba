"""Tests for ``hostrouting judge``; the HTML page is tested in test_fleet_page.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from node import shadowed_kernel

from benchmarks.snapshots import write_recordings
from hostrouting import Host, Layout, cli
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable

ORDER = ["fixed", "shadowed", "discarded", "past-main", "no-default-route", "cut-off"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    write_recordings(folder, 12)
    return folder


@pytest.fixture
def judge(folder: Path, tmp_path: Path, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs judge on snapshots of some kinds and returns the exit code, stdout and stderr."""

    def run(kinds: list[str], *words: object) -> tuple[int, str, str]:
        host = Host(routes=shadowed_kernel(), units=FakeSystemd(), layout=Layout(tmp_path))
        paths = [folder / f"node-{ORDER.index(kind) + 6 * each:05}.json" for kind in kinds for each in (0, 1)]
        code = cli.main(["judge", *map(str, (folder / "config.json", *paths, *words))], host=host)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        (["fixed"], 0),
        (["fixed", "shadowed"], 1),
        (["fixed", "no-default-route"], 2),
        (["cut-off"], 2),
        (["cut-off", "shadowed"], 1),
    ],
)
def test_it_exits_with_0_1_or_2(judge: Any, kinds: list[str], code: int) -> None:
    assert judge(kinds)[0] == code


def test_the_page_has_a_row_for_each_group(judge: Any, folder: Path) -> None:
    assert (
        judge(["fixed", "shadowed", "cut-off"])[1]
        == f"""\
6 snapshots: 2 ok, 2 overlap, 2 unknown
✓ 2  ok
     aks-h200-00000 aks-h200-00006
✗ 2  OVERLAP 172.16.0.0/16 by ib0-ib7
     fix: add to hostRouting.staticRoutes.routes: {{"destination": "172.16.0.0/17"}}, {{"destination": "172.16.128.0/17"}}
     aks-h200-00001 aks-h200-00007
? 2  unknown: no-snapshot: {folder}/node-00005.json: is not JSON: {why_not_json(folder / "node-00005.json")}
     node-00005 node-00011
"""
    )


def test_one_snapshot_is_one_host(judge: Any, folder: Path) -> None:
    assert judge([], folder / "node-00000.json")[1].startswith("1 snapshot: 1 ok, ")


def why_not_json(path: Path) -> str:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(path.read_text())
    return str(caught.value)


def test_json_output_is_one_document(judge: Any) -> None:
    told = json.loads(judge(ORDER, "--output", "json")[1])
    assert told["counts"] == {"ok": 2, "overlap": 6, "unknown": 4}
    assert [len(group["hosts"]) for group in told["groups"]] == [2] * 6


def test_a_missing_library_is_named_before_the_work(judge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, out, err = judge(["fixed"], "--output", "html")
    assert (code, out) == (2, "")
    assert (
        err
        == "hostrouting: --output html needs jinja2, which isn't installed\nhostrouting: hint: pip install 'hostrouting[html]'\n"
    )


def test_each_groups_report_has_a_checks_form(judge: Any) -> None:
    schema = json.loads((Path(__file__).parents[3] / "hostrouting/overlap/route-overlap.schema.json").read_text())
    for group in json.loads(judge(ORDER, "--output", "json")[1])["groups"]:
        assert list(Draft202012Validator(schema).iter_errors(group["report"])) == []
