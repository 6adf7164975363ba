"""Test that the watcher keeps two snapshots for ``diff``, seldom, privately, and at no cost of the
verdict.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from ipaddress import IPv4Network
from itertools import pairwise
from pathlib import Path

import pytest
from test_watch import KEEPING, World

from hostrouting import HostRoutingError, Snapshot, diff
from hostrouting.boot import files
from hostrouting.kernel.port import Write
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.watch import _snapshots
from hostrouting.watch._events import EventKind

SHADOW = Route(IPv4Network("172.16.1.0/25"), (NextHop("ib0"),), protocol=Protocol.STATIC)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, world: World) -> list[tuple[str, float]]:
    """Return a list of the snapshots that are written, with the time."""
    seen: list[tuple[str, float]] = []
    write = files.write_if_changed

    def record(path: Path, text: str, *, mode: int) -> None:
        seen.append((path.name, world.clock.monotonic()))
        write(path, text, mode=mode)

    monkeypatch.setattr(_snapshots, "write_if_changed", record)
    return seen


def shadow(world: World) -> None:
    assert world.kernel.write(Write.ADD, [SHADOW]) == ()


def clear(world: World) -> None:
    assert world.kernel.write(Write.DELETE, [SHADOW]) == ()


def test_the_diff_is_there_when_somebody_comes(world: World) -> None:
    world.at(100, lambda: shadow(world))
    world.watch(200)
    report = diff(Snapshot.load(world.layout.good), Snapshot.load(world.layout.bad), KEEPING)
    (difference,) = report.changed
    assert list(map(str, difference.ranges)) == ["172.16.1.0/25"]
    assert [cause.after for cause in difference.causes] == [(str(SHADOW),)]


def test_only_root_reads_them(world: World) -> None:
    mask = os.umask(0)
    try:
        world.at(100, lambda: shadow(world))
        world.watch(200)
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in world.layout.snapshots} == {0o600}


def test_a_good_snapshot_is_at_most_an_hour_old(
    world: World, written: list[tuple[str, float]]
) -> None:
    world.watch(3600 + 300)
    assert [name for name, _ in written] == ["good.json"] * 2
    assert all(3600 <= later - earlier < 3700 for (_, earlier), (_, later) in pairwise(written))


def test_events_write_nothing(world: World, written: list[tuple[str, float]]) -> None:
    elsewhere = Route(IPv4Network("192.0.2.0/24"), (NextHop("eth0"),), protocol=Protocol.STATIC)
    for second in range(10, 250, 4):
        world.at(second, lambda: world.kernel.write(Write.ADD, [elsewhere]))
        world.at(second + 2, lambda: world.kernel.write(Write.DELETE, [elsewhere]))
    world.watch(250)
    assert world.looks() > 25
    assert [name for name, _ in written] == ["good.json"]


def test_a_verdict_that_keeps_changing_writes_once_a_minute(
    world: World, written: list[tuple[str, float]]
) -> None:
    for second in range(10, 150, 4):
        world.at(second, lambda: shadow(world))
        world.at(second + 2, lambda: clear(world))
    world.watch(150)
    assert {name for name, _ in written} == {"good.json", "bad.json"}
    assert len(written) <= 2 * 3


def test_only_the_first_failing_verdict_counts(
    world: World, written: list[tuple[str, float]]
) -> None:
    world.at(100, lambda: shadow(world))
    world.watch(3600 + 300)  # a good one would be replaced after an hour
    assert [name for name, _ in written] == ["good.json", "bad.json"]


def test_a_failure_soon_after_another_is_kept_if_it_lasts(world: World) -> None:
    other = Route(IPv4Network("172.16.1.128/25"), (NextHop("ib0"),), protocol=Protocol.STATIC)
    world.at(100, lambda: shadow(world))
    world.at(102, lambda: clear(world))
    world.at(104, lambda: world.kernel.write(Write.ADD, [other]))
    world.watch(300)
    report = diff(Snapshot.load(world.layout.good), Snapshot.load(world.layout.bad), KEEPING)
    (difference,) = report.changed
    assert [cause.after for cause in difference.causes] == [(str(other),)]


def test_a_restart_of_a_failing_watcher_keeps_the_first_snapshot(
    tmp_path: Path, world: World
) -> None:
    world.at(100, lambda: shadow(world))
    world.watch(200)
    os.utime(world.layout.good, (1, 1))
    first = world.layout.bad.read_text()
    again = World(tmp_path)
    again.kernel = again.backend = world.kernel
    again.watch(100)
    assert world.layout.bad.read_text() == first


def refuse(*_: object, **__: object) -> Iterator[None]:
    raise HostRoutingError("can't write: No space left on device")


def test_a_full_disk_harms_no_verdict(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_snapshots, "write_if_changed", refuse)
    world.at(100, lambda: shadow(world))
    world.watch(300)
    assert list(world.marker()) == ["detected"]
    assert len(world.of_kind(EventKind.FAILURE)) == 1
    assert not any(path.exists() for path in world.layout.snapshots)
    ((_, problem),) = world.of_kind(EventKind.PROBLEM)
    assert "No space left" in problem.message


@pytest.mark.parametrize("bytes_max", [0, 1])
def test_a_large_snapshot_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr(_snapshots, "_MIB_MAX", 0)
    listed = world.layout.of("/proc/net/fib_triestat")
    listed.parent.mkdir(parents=True)
    listed.write_text(f"Main:\n\tLeaves:         7\n\tPrefixes:       {bytes_max}\n")
    world.watch(200)
    assert not world.layout.good.exists()
    ((_, problem),) = world.of_kind(EventKind.PROBLEM)
    assert "more than 0 MiB" in problem.message


def test_a_host_with_many_routes_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _snapshots, "snapshot_of", lambda *_: pytest.fail("it would take gigabytes")
    )
    listed = world.layout.of("/proc/net/fib_triestat")
    listed.parent.mkdir(parents=True)
    listed.write_text("Main:\n\tPrefixes:       500000\nLocal:\n\tPrefixes:       7\n")
    world.watch(200)
    assert len(world.of_kind(EventKind.PROBLEM)) == 1


def test_without_cidrs_nothing_is_kept(world: World) -> None:
    world.config = KEEPING.__class__(static_routes=KEEPING.static_routes)
    world.watch(200)
    assert not world.layout.good.parent.exists()


def test_a_snapshot_is_read_as_any_other(world: World) -> None:
    world.watch(100)
    loaded = Snapshot.load(world.layout.good)
    assert loaded.routes == take_snapshot(world.kernel).routes
