"""Entries for the journal: the native protocol, read back as journald does, and lines where there is none."""

from __future__ import annotations

import io
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from hostrouting import StaticRoute
from hostrouting.watch.events import Event, EventKind, Priority
from hostrouting.watch.journal import Journal, fields_of, to_datagram

if TYPE_CHECKING:
    import pytest

EVENT = Event(
    EventKind.FAILURE,
    Priority.ERROR,
    "OVERLAP: expected CIDR 172.16.0.0/16 …",
    cidr="172.16.0.0/16",
    routes=("172.16.0.0/16 dev ib0",),
    devs=("ib0", "ib1"),
    fix=(StaticRoute("172.16.0.0/17"),),
)


def parsed(datagram: bytes) -> list[tuple[str, str]]:
    """As https://systemd.io/JOURNAL_NATIVE_PROTOCOL/ tells."""
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


names = st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True)


@given(st.lists(st.tuples(names, st.text())))
def test_whatever_the_values_hold_the_fields_read_back(fields: list[tuple[str, str]]) -> None:
    assert parsed(to_datagram(tuple(fields))) == fields


def test_an_entry_has_its_fields_several_where_there_are_several_values() -> None:
    fields = fields_of(EVENT)
    assert dict(fields)["MESSAGE_ID"] == EventKind.FAILURE.value
    assert [value for name, value in fields if name == "HOSTROUTING_DEV"] == ["ib0", "ib1"]
    assert ("HOSTROUTING_CIDR", "172.16.0.0/16") in fields
    assert ("HOSTROUTING_FIX", '{"destination": "172.16.0.0/17"}') in fields
    assert ("PRIORITY", "3") in fields


def test_it_goes_to_the_journals_socket_where_systemd_has_started_us(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(path))
        Journal.of({"JOURNAL_STREAM": "8:1"}, path).write(EVENT)
        assert parsed(journald.recv(65536)) == list(fields_of(EVENT))


def test_without_the_journal_a_service_prints_lines_with_their_priority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal.of({"JOURNAL_STREAM": "8:1"}, tmp_path / "none").write(EVENT)
    assert capsys.readouterr().out == f"<3>{EVENT.message}\n"


def test_what_the_journal_does_not_take_is_printed(tmp_path: Path) -> None:
    path, stream = tmp_path / "socket", io.StringIO()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(path))
    Journal(path, has_prefix=True, stream=stream).write(EVENT)
    assert stream.getvalue() == f"<3>{EVENT.message}\n"


def test_in_the_foreground_it_prints_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Journal.of({}, tmp_path / "none").write(EVENT)
    assert capsys.readouterr().out == f"{EVENT.message}\n"


def test_each_kind_has_an_id_of_its_own_and_the_docs_list_it() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "watch.md").read_text()
    for kind in EventKind:
        assert re.search(rf"`{kind.name.lower().replace('_', '-')}` \| `{kind.value}`", docs), kind
    assert len({kind.value for kind in EventKind}) == len(EventKind)
