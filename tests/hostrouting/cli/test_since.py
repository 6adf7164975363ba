"""Test that ``judge --since`` groups hosts by what has changed their lookups."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from node import add_nics, default_route, shadowed_kernel
from scenario import play
from wanted import section

from hostrouting import Config, HostRoutingError, judge
from hostrouting.cli.fleet import fleet_text
from hostrouting.fleet.groups import FleetReport, JudgedHost
from hostrouting.kernel.port import Write
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.overlap.check import unjudged
from hostrouting.overlap.difference import DiffReport
from hostrouting.overlap.findings import UnknownReason
from hostrouting.testing import FakeKernel

pytestmark = pytest.mark.usefixtures("judged_here")

CONFIG = {"hostRouting": section(cidrs=["10.96.0.0/12"])}


def host(name: str, gateway: str = "10.1.0.1", *routes: Route) -> Snapshot:
    kernel = shadowed_kernel()
    kernel.write(
        Write.REPLACE, [default_route(NextHop("eth0", IPv4Address(gateway)), metric=0), *routes]
    )
    return attrs.evolve(take_snapshot(kernel), host=name)


EMPTY = "is empty (a shell empties the file that it redirects output to, before we read it)"
DETOUR = Route(IPv4Network("10.96.0.0/16"), (NextHop("ib0"),), protocol=Protocol.STATIC)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders with the snapshots of yesterday and of today."""
    before, after = tmp_path / "before", tmp_path / "after"
    yesterday = [host(name) for name in ("same", "moved-1", "moved-2", "detour")]
    today = {
        "same": host("same"),
        "moved-1": host("moved-1", "10.1.0.7"),
        "moved-2": host("moved-2", "10.1.0.8"),
        "detour": host("detour", "10.1.0.1", DETOUR),
        "new": host("new"),
    }
    for folder in (before, after):
        folder.mkdir()
    for snapshot in yesterday:
        snapshot.save(before / f"{snapshot.host}.json")
    for name, snapshot in today.items():
        snapshot.save(after / f"{name}.json")
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


def with_rule(name: str, address: str, source: str) -> Snapshot:
    """Return a host with an InfiniBand address, and a rule for a source as ``keep`` makes it."""
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", ib0=f"{address}/16")
    play(
        kernel,
        f"""
        route add default via 10.1.0.1 dev eth0
        route add 172.16.0.0/17 via 10.1.0.1 dev eth0
        route add 172.16.0.0/16 dev ib0 table 2170000 scope link src {address}
        rule add pref 2170 from {source} lookup 2170000
        """,
    )
    return attrs.evolve(take_snapshot(kernel), host=name)


def test_rules_for_own_addresses_are_one_group(tmp_path: Path) -> None:
    """Both as they come and as they go, but rules for other sources are told apart."""
    sources = ("172.16.1.10", "172.16.2.10", "all", "172.16.0.0/16")
    folders = tmp_path / "without", tmp_path / "with"
    for folder in folders:
        folder.mkdir()
    for number, source in enumerate(sources, 1):
        ruled = with_rule(f"gpu-{number}", f"172.16.{number}.10", source)
        rules = tuple(rule for rule in ruled.rules if rule.preference != 2170)
        for snapshot, folder in zip(
            (attrs.evolve(ruled, rules=rules), ruled), folders, strict=True
        ):
            snapshot.save(folder / f"{ruled.host}.json")
    config = Config.from_mapping({"hostRouting": section(cidrs=["172.16.0.0/16"])})
    for before, after in (folders, folders[::-1]):
        report = judge(sorted(after.iterdir()), config, since=before)
        groups = {
            group.hosts: [each.kind for each in group.causes or ()] for group in report.groups
        }
        assert groups == {("gpu-1", "gpu-2"): ["rule"], ("gpu-3",): ["rule"], ("gpu-4",): ["rule"]}


def test_own_addresses_that_came_are_one_group(tmp_path: Path) -> None:
    """Their entries in table local differ in nothing but the address."""
    folders = tmp_path / "without", tmp_path / "with"
    for folder in folders:
        folder.mkdir()
    for number in (1, 2):
        kernel = FakeKernel()
        add_nics(kernel, eth0="10.1.0.4/24")
        play(kernel, "route add default via 10.1.0.1 dev eth0")
        for folder in folders:
            attrs.evolve(take_snapshot(kernel), host=f"gpu-{number}").save(
                folder / f"gpu-{number}.json"
            )
            if folder is folders[0]:
                play(kernel, f"address add 10.1.8.{number}/32 dev eth0")
    config = Config.from_mapping({"hostRouting": section(cidrs=["10.1.0.0/16"])})
    (group,) = judge(sorted(folders[1].iterdir()), config, since=folders[0]).groups
    assert (group.hosts, bool(group.causes)) == (("gpu-1", "gpu-2"), True)


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


def test_a_host_without_an_earlier_snapshot_has_a_heading(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    before, after = folders
    words = ("judge", write(CONFIG), after / "same.json", after / "new.json", "--since", before)
    _, out, _ = run(*words)
    rows = [line for line in out.splitlines() if line[:1] in "✓✗"]
    assert len(rows) == 2
    apart = [
        line for line in rows if f"not compared: there is no earlier snapshot in {before}" in line
    ]
    assert len(apart) == 1
    groups = {
        group["hosts"][0]: group
        for group in json.loads(run(*words, "--output", "json")[1])["groups"]
    }
    assert groups["same"]["uncompared"] == []
    assert groups["new"]["uncompared"] == [
        {"reason": f"there is no earlier snapshot in {before}", "hosts": ["new"]}
    ]


def test_hosts_without_a_later_snapshot_are_named(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    """A host that didn't answer may have no file."""
    before, after = folders
    words = ("judge", write(CONFIG), after, "--since", before)
    line = "1 host has a snapshot in --since, but none among these: detour"
    assert "none among these" not in run(*words)[1]
    (after / "detour.json").unlink()
    (before / "README.txt").touch()
    assert run(*words)[1].splitlines()[1] == line
    assert f"<p>{line}</p>" in run(*words, "--output", "html")[1]
    assert json.loads(run(*words, "--output", "json")[1])["gone"] == ["detour"]
    (after / "moved-2.json").unlink()
    line = "2 hosts have a snapshot in --since, but none among these: detour, moved-2\n"
    assert line in run(*words)[1]
    report = judge([host("same")], Config.from_mapping(CONFIG), since=before)
    assert report.gone == ("detour", "moved-1", "moved-2")


def test_swapped_folders_are_warned_of(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    before, after = folders
    words = ("judge", write(CONFIG), before, "--since", after)
    for name in ("same", "detour", "moved-1"):
        early = attrs.evolve(Snapshot.load(before / f"{name}.json"), time="2020-11-20T09:00:00Z")
        early.save(before / f"{name}.json")
    attrs.evolve(host("moved-2"), time=None).save(after / "moved-2.json")
    said = (
        "newer than the later snapshot, so what came is shown as what went: detour, moved-1, same"
    )
    line = f"warning: 3 earlier snapshots are {said}"
    assert run(*words)[1].splitlines()[1] == line
    assert f"<p>{line}</p>" in run(*words, "--output", "html")[1]
    told = json.loads(run(*words, "--output", "json")[1])
    assert (told["sinceNewer"], told["sinceOfAnother"]) == (["detour", "moved-1", "same"], [])
    assert "warning" not in run("judge", write(CONFIG), after, "--since", before)[1]


def test_a_comparison_with_another_host_is_warned_of(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    before, after = folders
    taken = Snapshot.load(after / "same.json").time
    attrs.evolve(host("other"), time=taken).save(before / "same.json")
    words = ("judge", write(CONFIG), after, "--since", before)
    line = "warning: 1 earlier snapshot is another host's: same"
    assert run(*words)[1].splitlines()[1] == line
    assert f"<p>{line}</p>" in run(*words, "--output", "html")[1].replace("&#39;", "'")
    told = json.loads(run(*words, "--output", "json")[1])
    assert (told["sinceNewer"], told["sinceOfAnother"]) == ([], ["same"])


def test_each_unreadable_earlier_snapshot_has_its_reason(folders: tuple[Path, Path]) -> None:
    before, after = folders
    (before / "same.json").write_text("{")
    (before / "moved-1.json").write_text("")
    today = [after / f"{name}.json" for name in ("same", "moved-1", "new")]
    report = judge(today, Config.from_mapping(CONFIG), since=before)
    by_hosts = {group.hosts: group for group in report.groups}
    assert by_hosts.keys() == {("same", "moved-1"), ("new",)}
    broken = by_hosts["same", "moved-1"]
    assert [(each.reason.split(": ")[:2], each.hosts) for each in broken.uncompared] == [
        ([f"the earlier snapshot in {before}", "is not JSON"], ("same",)),
        ([f"the earlier snapshot in {before}", EMPTY], ("moved-1",)),
    ]
    assert {group.causes for group in report.groups} == {None}


def test_a_torn_earlier_snapshot_is_named(folders: tuple[Path, Path]) -> None:
    before, after = folders
    attrs.evolve(host("same"), is_torn=True).save(before / "same.json")
    (group,) = judge([after / "same.json"], Config.from_mapping(CONFIG), since=before).groups
    (uncompared,) = group.uncompared
    torn = "the host changed while the earlier snapshot was taken"
    assert (group.causes, uncompared.reason.partition(";")[0]) == (None, torn)


def test_a_reason_is_told_once(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    """A torn snapshot is neither judged nor compared, for the same reason."""
    before, after = folders
    attrs.evolve(host("same"), is_torn=True).save(after / "same.json")
    _, out, _ = run("judge", write(CONFIG), after / "same.json", "--since", before)
    assert out.count("the host changed while the snapshot was taken") == 1


def test_a_reason_that_ends_like_another_is_told() -> None:
    overlap = Config.from_mapping(CONFIG).route_overlap
    report = unjudged(overlap, UnknownReason.CHECK_FAILED, "eth0: no carrier")
    since = DiffReport("same", None, None, (), reason="no carrier")
    text = fleet_text(FleetReport.of([JudgedHost("same", report, since)]), None)
    assert "not compared: no carrier" in text


def test_a_host_without_a_verdict_has_its_causes(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    """The default route that went explains why there is no verdict any more."""
    before, after = folders
    lost = host("same")
    kept = tuple(route for route in lost.routes if route.destination.prefixlen)
    attrs.evolve(lost, routes=kept).save(after / "same.json")
    code, out, _ = run("judge", write(CONFIG), after / "same.json", "--since", before)
    assert (code, "unknown: no-default-route: " in out, "since then - route default" in out) == (
        2,
        True,
        True,
    )


def test_since_needs_a_folder(folders: tuple[Path, Path]) -> None:
    with pytest.raises(HostRoutingError):
        judge([folders[1] / "same.json"], Config.from_mapping(CONFIG), since=folders[0] / "missing")


MACS = ("00:0d:3a:00:00:01", "00:0d:3a:00:00:02")


def with_nics(name: str, eth0: str, eth1: str) -> Snapshot:
    """Return a host whose NICs have these MAC addresses; a VLAN has eth0's."""
    snapshot = host(name)
    first = next(link for link in snapshot.links if link.name == "eth0")
    first = attrs.evolve(first, kind=None, mac=eth0)
    nics = [first, attrs.evolve(first, index=90, name="eth1", mac=eth1)]
    vlan = attrs.evolve(first, index=91, name="eth0.7", kind="vlan")
    others = [link for link in snapshot.links if link.name != "eth0"]
    return attrs.evolve(snapshot, links=(*others, *nics, vlan))


def test_nics_that_swapped_names_are_told(
    run: Callable[..., tuple[int, str, str]],
    folders: tuple[Path, Path],
    write: Callable[[object], Path],
) -> None:
    before, after = folders
    for name, macs in (("same", MACS), ("swapped", MACS[::-1])):
        with_nics(name, *MACS).save(before / f"{name}.json")
        with_nics(name, *macs).save(after / f"{name}.json")
    words = ("judge", write(CONFIG), after / "same.json", after / "swapped.json", "--since", before)
    _, out, _ = run(*words)
    told = "NICs have other names: eth0 is now eth1, eth1 is now eth0"
    assert out.count(f"since then {told}") == 1
    groups = json.loads(run(*words, "--output", "json")[1])["groups"]
    renamed = {group["hosts"][0]: group["renamed"] for group in groups}
    pairs = [{"before": "eth0", "after": "eth1"}, {"before": "eth1", "after": "eth0"}]
    assert renamed == {"same": [], "swapped": pairs}
    snapshots = [folder / "swapped.json" for folder in folders]
    assert f"{told}\n" in run("diff", *snapshots)[1]
    assert json.loads(run("diff", *snapshots, "--output", "json")[1])["renamed"] == pairs


def test_our_own_new_routes_are_counted_after_other_changes(tmp_path: Path) -> None:
    """After a roll-out, each host has them, and its lookups have changed because of them."""
    parts = [*IPv4Network("172.16.0.0/16").subnets(new_prefix=19)]
    ours = [Route(part, (NextHop("eth0", IPv4Address("10.1.0.1")),)) for part in parts]
    host("a", "10.1.0.1", ours[0]).save(tmp_path / "a.json")
    document = host("a", "10.1.0.1", *ours[1:], DETOUR).to_document()
    config = Config.from_mapping({"hostRouting": section(cidrs=["172.16.0.0/16", "10.96.0.0/12"])})
    report = judge([document], config, since=tmp_path)
    detour, gone = f"+ route {DETOUR}", f"- route {ours[0]}"
    assert f"since then {detour}, {gone}, + 7 routes of hostrouting" in fleet_text(report, None)
    assert len(report.groups[0].causes or ()) == 9


def test_our_own_new_rules_are_counted_one_by_one(tmp_path: Path) -> None:
    """The rules of kept addresses have the same preference."""
    kernel = shadowed_kernel()
    attrs.evolve(take_snapshot(kernel), host="a").save(tmp_path / "a.json")
    play(kernel, "route add default via 10.1.0.9 dev eth0 table 2170000")
    rules = "rule add pref 2170 to 10.96.{}.0/24 lookup 2170000 proto 217"
    play(kernel, "\n".join(map(rules.format, range(2))))
    later = attrs.evolve(take_snapshot(kernel), host="a").to_document()
    report = judge([later], Config.from_mapping(CONFIG), since=tmp_path)
    assert "+ 2 rules of hostrouting" in fleet_text(report, None)


def test_hosts_that_differ_in_our_new_routes_are_a_group(tmp_path: Path) -> None:
    halves = [*IPv4Network("172.16.0.0/16").subnets()]
    parts = {"a": halves, "b": [part for half in halves for part in half.subnets()]}
    config = Config.from_mapping({"hostRouting": section(cidrs=["172.16.0.0/16"])})
    later: list[dict[str, Any]] = []
    for name, destinations in parts.items():
        host(name).save(tmp_path / f"{name}.json")
        hops = (NextHop("eth0", IPv4Address("10.1.0.1")),)
        ours = (Route(destination, hops) for destination in destinations)
        later.append(host(name, "10.1.0.1", *ours).to_document())
    report = judge(later, config, since=tmp_path)
    assert [group.hosts for group in report.groups] == [("a", "b")]
    assert "ok; apply would fail; since then (on a) + 2 routes of hostrouting" in fleet_text(
        report, None
    )
