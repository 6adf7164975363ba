"""What systemd hears of a service: the datagrams of sd_notify(3), on a real socket."""

from __future__ import annotations

import socket
from math import inf
from typing import TYPE_CHECKING

import pytest

from hostrouting.watch.notify import Supervisor

if TYPE_CHECKING:
    from pathlib import Path


def heard(listener: socket.socket) -> list[str]:
    listener.setblocking(False)
    lines = []
    try:
        while True:
            lines.append(listener.recv(4096).decode())
    except BlockingIOError:
        return lines


@pytest.mark.parametrize("abstract", [False, True])
def test_each_word_is_a_datagram_to_the_named_socket(tmp_path: Path, abstract: bool) -> None:
    name = f"@hostrouting-test-{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if abstract else name)
        supervisor = Supervisor.of({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"}, pid=7)
        supervisor.ready()
        supervisor.status("two\nlines")
        supervisor.ping()
        supervisor.stopping()
        assert heard(listener) == ["READY=1", "STATUS=two lines", "WATCHDOG=1", "STOPPING=1"]
    supervisor.ping()  # nobody is there any more: no error


def test_a_status_is_never_longer_than_systemd_reads(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        Supervisor(name).status("ö" * 100_000)
        (line,) = heard(listener)
    assert line.startswith("STATUS=öö")
    assert line.endswith("ö…")
    assert len(line.encode()) < 4096


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, inf),
        ({"WATCHDOG_USEC": "0"}, inf),
        ({"WATCHDOG_USEC": "-1"}, inf),
        ({}, inf),
    ],
)
def test_it_pings_twice_in_the_watchdogs_time_if_the_watchdog_is_for_us(
    environment: dict[str, str], seconds: float
) -> None:
    assert Supervisor.of(environment, pid=7).ping_seconds == seconds


@pytest.mark.parametrize("name", ["", "@", "relative", "/nowhere/at/all"])
def test_a_socket_that_is_none_is_no_error(name: str) -> None:
    Supervisor.of({"NOTIFY_SOCKET": name}, pid=7).ready()
