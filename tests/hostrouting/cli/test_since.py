"""Test that ``judge --since`` groups hosts by what has changed their lookups."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from node import default_route, shadowed_kernel
from wanted import section

from hostrouting import Config, HostRoutingError, judge
from hostrouting.kernel.port import Write
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import NextHop, Protocol, Route

CONFIG = {"hostRouting": section(cidrs=["10.96.0.0/12"])}


def host(name: str, gateway: str = "10.1.0.1", *routes: Route) -> Snapshot:
    kernel = shadowed_kernel()
    kernel.write(
        Write.REPLACE, [default_route(NextHop("eth0", IPv4Address(gateway)), metric=0), *routes]
    )
    return attrs.evolve(take_snapshot(kernel), host=name)


DETOUR = Route(IPv4Network("10.96.0.0/16"), (NextHop("ib0"),), protocol=Protocol.STATIC)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders with the snapshots of yesterday and of today."""
    before, after = tmp_path / "before", tmp_path / "after"
    today = {
        "same": host("same"),
        "moved-1": host("moved-1", "10.1.0.7"),
        "moved-2": host("moved-2", "10.1.0.8"),
        "detour": host("detour", "10.1.0.1", DETOUR),
        "new": host("new"),
    }
    for folder in (before, after):
        folder.mkdir()
    for name, snapshot in today.items():
        snapshot.save(after / f"{name}.json")
        if name != "new":
            host(name).save(before / f"{name}.json")
    return before, after


def test_hosts_with_the_same_cause_are_a_group(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    before, after = folders
    code, out, _ = run(
        "judge", write(CONFIG), *sorted(after.iterdir()), "--since", before, "--output", "json"
    )
    groups: list[dict[str, Any]] = json.loads(out)["groups"]
    by_hosts = {tuple(group["hosts"]): group["causes"] for group in groups}
    assert code == 1
    assert by_hosts.keys() == {("same",), ("moved-1", "moved-2"), ("detour",), ("new",)}
    assert by_hosts["same",] == []
    assert by_hosts["new",] is None
    assert [cause["kind"] for cause in by_hosts["moved-1", "moved-2"]] == ["route"]
    assert by_hosts["detour",][0]["after"] == [str(DETOUR)]


def test_without_since_nothing_is_compared(folders: tuple[Path, Path]) -> None:
    report = judge(sorted(folders[1].iterdir()), Config.from_mapping(CONFIG))
    assert {group.causes for group in report.groups} == {None}
    assert len(report.groups) == 2


def test_a_snapshot_without_a_file_goes_by_its_host(folders: tuple[Path, Path]) -> None:
    report = judge([host("moved-1", "10.1.0.7")], Config.from_mapping(CONFIG), since=folders[0])
    assert [len(group.causes or ()) for group in report.groups] == [1]


def test_the_text_names_the_cause(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    _, out, _ = run("judge", write(CONFIG), folders[1] / "detour.json", "--since", folders[0])
    assert f"+ route {DETOUR}" in out


def test_an_unreadable_earlier_snapshot_is_named(folders: tuple[Path, Path]) -> None:
    before, after = folders
    (before / "same.json").write_text("{")
    report = judge(
        [after / "same.json", after / "new.json"], Config.from_mapping(CONFIG), since=before
    )
    by_host = {group.hosts: group for group in report.groups}
    assert by_host.keys() == {("same",), ("new",)}
    assert str(before / "same.json") in (by_host["same",].uncompared or "")
    assert (by_host["same",].causes, by_host["new",].causes, by_host["new",].uncompared) == (
        None,
        None,
        None,
    )


def test_a_torn_earlier_snapshot_is_named(folders: tuple[Path, Path]) -> None:
    before, after = folders
    attrs.evolve(host("same"), is_torn=True).save(before / "same.json")
    (group,) = judge([after / "same.json"], Config.from_mapping(CONFIG), since=before).groups
    assert (group.causes, bool(group.uncompared)) == (None, True)


def test_since_needs_a_folder(folders: tuple[Path, Path]) -> None:
    with pytest.raises(HostRoutingError):
        judge([folders[1] / "same.json"], Config.from_mapping(CONFIG), since=folders[0] / "missing")
