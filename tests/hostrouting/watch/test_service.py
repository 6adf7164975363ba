"""Tests that the watcher's service is installed and removed, and that it writes valid journal
entries and notifications.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest
from acting import is_held
from backends import FailingBackend
from file_trees import outside_run, write_file
from hypothesis import given
from hypothesis import strategies as st
from wanted import SHADOWED, config

import phases
from hostrouting import CheckRouteOverlap, Config, Configure, Host, Layout, UnitError
from hostrouting.boot.locks import locked
from hostrouting.boot.parts import watch_part
from hostrouting.kernel.port import Write, read_our_routes
from hostrouting.model.errors import FileError
from hostrouting.model.lookups import RouteFailure
from hostrouting.model.routes import Route
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.watch._events import Event, EventKind
from hostrouting.watch.outputs import notify, to_datagram, write_entry
from phases.testing import FakeClock

UNIT = "hostrouting-watch.service"


WATCHED = config(
    SHADOWED, mode="WARN", watch={"enabled": True, "textfile": "/var/lib/x/hostrouting.prom"}
)
MORE = {"enabled": True, "routes": [{"destination": SHADOWED}, {"destination": "172.16.2.0/24"}]}


@pytest.fixture
def units(layout: Layout) -> FakeSystemd:
    return FakeSystemd(layout)


def apply(host: Host, wanted: Config) -> None:
    phases.run(Configure(wanted, host=host))


def kept(layout: Layout) -> Config:
    return Config.load(layout.manifest)


def test_a_second_run_only_starts_a_stopped_watcher(
    host: Host, layout: Layout, units: FakeSystemd
) -> None:
    apply(host, WATCHED)
    before = outside_run(layout.root)
    apply(host, WATCHED)
    assert (outside_run(layout.root), units.restarts) == (before, [UNIT])
    changed = attrs.evolve(WATCHED, wait_seconds=1)
    apply(host, changed)
    assert (kept(layout), units.restarts) == (changed, [UNIT])
    units.stop(UNIT)
    apply(host, WATCHED)
    assert units.restarts == [UNIT, UNIT]


def test_its_config_changes_under_the_lock_before_the_routes(
    kernel: FakeKernel, host: Host, layout: Layout
) -> None:
    """Because the watcher reads the config under the lock, it neither reverts an update nor
    restores removed routes.
    """
    seen: list[tuple[bool, Config]] = []

    class Looking(FailingBackend):
        def write(self, change: Write, routes: Sequence[Route]) -> tuple[RouteFailure, ...]:
            seen.append((is_held(layout.lock), kept(layout)))
            return super().write(change, routes)

    apply(host, WATCHED)
    updates = [attrs.evolve(WATCHED, static_routes=routes) for routes in (MORE, {})]
    for changed in updates:
        apply(Host(routes=Looking(kernel, {}), units=host.units, layout=layout), changed)
    assert seen == [(True, changed) for changed in updates]


def test_without_the_lock_neither_config_nor_routes_change(
    kernel: FakeKernel, host: Host, layout: Layout
) -> None:
    apply(host, WATCHED)
    before, scope = outside_run(layout.root), phases.CancelScope(clock=FakeClock())
    with (
        locked(layout.lock, phases.CancelScope()),
        pytest.raises(FileError, match="another run has held it"),
    ):
        phases.run(Configure(attrs.evolve(WATCHED, static_routes={}), host=host), scope=scope)
    assert outside_run(layout.root) == before
    assert read_our_routes(kernel)


def test_without_expected_cidrs_no_marker_stays(host: Host, layout: Layout) -> None:
    apply(host, WATCHED)
    assert layout.marker_ok.exists()
    unjudged = attrs.evolve(WATCHED, route_overlap={})
    phases.run(CheckRouteOverlap(unjudged, host=host))
    assert kept(layout).route_overlap == unjudged.route_overlap
    assert not layout.marker_ok.exists()


@pytest.mark.parametrize(
    "path", ["", '/opt/a"b/python', "/opt/it's/python", "/opt/a\\b/python", "/opt/a\nb/python"]
)
def test_a_python_that_systemd_can_not_run_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(sys, "executable", path)
    with pytest.raises(UnitError, match=r"leave out watch\.enabled"):
        apply(host, WATCHED)


@pytest.mark.parametrize(
    ("textfile", "folder"), [("/var/lib/x/a.prom", "/var/lib/x"), ("/var/b/a.prom", "/var/b")]
)
def test_it_may_write_into_the_textfiles_folder(layout: Layout, textfile: str, folder: str) -> None:
    watch = {"enabled": True, "textfile": textfile}
    unit = watch_part(attrs.evolve(WATCHED, watch=watch), layout).files[0].text
    assert f'\nReadWritePaths="-{folder}"\n' in unit


def test_systemd_accepts_the_unit_with_any_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    python = tmp_path / "a b 100% $c" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    watch = {"enabled": True, "textfile": '/var/lib/a b/"%n"/x.prom'}
    text = watch_part(attrs.evolve(WATCHED, watch=watch), Layout(tmp_path)).files[0].text
    assert "@" not in re.sub(r"^SystemCallFilter=.*$", "", text, flags=re.MULTILINE)
    unit = write_file(tmp_path / UNIT, text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert done.returncode == 0, done.stderr
    assert str(unit) not in done.stderr
    assert UNIT not in done.stderr


# --- the journal and sd_notify(3) -----------------------------------------------------------------


FIELDS = {
    "CIDR": ["172.16.0.0/16"],
    "DEV": ["ib0", "ib1"],
    "FIX": ['{"destination": "172.16.0.0/17"}'],
}
EVENT = Event(EventKind.FAILURE, "OVERLAP: expected CIDR 172.16.0.0/16 …", FIELDS)


def parsed(datagram: bytes) -> list[tuple[str, str]]:
    """Parse a datagram according to https://systemd.io/JOURNAL_NATIVE_PROTOCOL/."""
    fields = []
    while datagram:
        line, _, rest = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest[:1] == b"\n"
            rest = rest[1:]
        fields.append((name.decode(), value.decode("utf-8", "surrogateescape")))
        datagram = rest
    return fields


@given(st.text(), st.lists(st.text()))
def test_fields_with_any_values_read_back(message: str, routes: list[str]) -> None:
    fields = parsed(to_datagram(Event(EventKind.ROUTES_RESTORED, message, {"ROUTE": routes})))
    assert fields[0] == ("MESSAGE", message)
    assert [value for name, value in fields if name == "HOSTROUTING_ROUTE"] == routes


def test_an_entry_repeats_a_field_for_several_values() -> None:
    fields = parsed(to_datagram(EVENT))
    assert dict(fields)["MESSAGE_ID"] == EventKind.FAILURE.message_id
    assert [value for name, value in fields if name == "HOSTROUTING_DEV"] == ["ib0", "ib1"]
    assert ("HOSTROUTING_CIDR", "172.16.0.0/16") in fields
    assert ("HOSTROUTING_FIX", '{"destination": "172.16.0.0/17"}') in fields
    assert ("PRIORITY", "3") in fields


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.settimeout(5)
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a short path of a temporary folder, because a socket's has at most 107 bytes."""
    opened = os.open(tmp_path, os.O_PATH)
    yield Path(f"/proc/self/fd/{opened}")
    os.close(opened)


def test_under_systemd_it_writes_to_the_journals_socket(
    folder: Path, listener: socket.socket
) -> None:
    listener.bind(str(folder / "socket"))
    write_entry(EVENT, folder / "socket", print)
    assert listener.recv(65536) == to_datagram(EVENT)


def test_without_a_journal_it_prints(
    folder: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    write_entry(EVENT, folder / "none", print)
    listener.bind(str(folder / "socket"))
    listener.close()
    write_entry(EVENT, folder / "socket", print)
    assert capsys.readouterr().out == f"<3>{EVENT.message}\n" * 2


def test_each_kind_has_a_unique_documented_id() -> None:
    docs = (Path(__file__).parents[3] / "docs/reference/watch.md").read_text()
    for kind in EventKind:
        assert re.search(
            rf"`{kind.name.lower().replace('_', '-')}` \| `{kind.message_id}`", docs
        ), kind
    assert len({kind.message_id for kind in EventKind}) == len(EventKind)


@pytest.mark.parametrize("abstract", [False, True])
def test_each_message_is_a_datagram_to_the_named_socket(
    folder: Path, listener: socket.socket, abstract: bool
) -> None:
    name = f"@hostrouting-test-{os.getpid()}" if abstract else str(folder / "notify")
    listener.bind("\0" + name[1:] if abstract else name)
    notify(name, "READY=1")
    assert listener.recv(4096) == b"READY=1"
    listener.close()
    notify(name, "STOPPING=1")  # the socket is closed, but that isn't an error


@pytest.mark.parametrize("name", ["", "@", "relative", "/nowhere/at/all"])
def test_a_missing_notify_socket_is_not_an_error(name: str) -> None:
    notify(name, "READY=1")
