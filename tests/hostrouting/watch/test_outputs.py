"""Tests that the watcher sends valid journal entries and sd_notify(3) messages."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostrouting.watch._events import Event, EventKind
from hostrouting.watch.outputs import notify, to_datagram, write_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENT = Event(
    EventKind.FAILURE,
    "OVERLAP: expected CIDR 172.16.0.0/16 …",
    {
        "CIDR": ["172.16.0.0/16"],
        "ROUTE": ["172.16.0.0/16 dev ib0"],
        "DEV": ["ib0", "ib1"],
        "FIX": ['{"destination": "172.16.0.0/17"}'],
    },
)


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


def test_under_systemd_it_writes_to_the_journals_socket(tmp_path: Path, listener: socket.socket) -> None:
    listener.bind(str(tmp_path / "socket"))
    write_entry(EVENT, tmp_path / "socket", print)
    assert listener.recv(65536) == to_datagram(EVENT)


def test_without_a_journal_it_prints(
    tmp_path: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    write_entry(EVENT, tmp_path / "none", print)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    write_entry(EVENT, tmp_path / "socket", print)
    assert capsys.readouterr().out == f"<3>{EVENT.message}\n" * 2


def test_each_kind_has_a_unique_documented_id() -> None:
    docs = (Path(__file__).parents[3] / "docs/reference/watch.md").read_text()
    for kind in EventKind:
        assert re.search(rf"`{kind.name.lower().replace('_', '-')}` \| `{kind.message_id}`", docs), kind
    assert len({kind.message_id for kind in EventKind}) == len(EventKind)


@pytest.mark.parametrize("abstract", [False, True])
def test_each_message_is_a_datagram_to_the_named_socket(
    tmp_path: Path, listener: socket.socket, abstract: bool
) -> None:
    name = f"@hostrouting-test-{tmp_path}" if abstract else str(tmp_path / "notify")
    listener.bind("\0" + name[1:] if abstract else name)
    notify(name, "READY=1")
    assert listener.recv(4096) == b"READY=1"
    listener.close()
    notify(name, "STOPPING=1")  # the socket is closed, but that isn't an error


@pytest.mark.parametrize("name", ["", "@", "relative", "/nowhere/at/all"])
def test_a_missing_notify_socket_is_no_error(name: str) -> None:
    notify(name, "READY=1")
