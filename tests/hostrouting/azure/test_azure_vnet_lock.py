"""azure-vnet's lock: honoured, waited for, and never left behind."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

import phases
from hostrouting import Layout
from hostrouting.azure.errors import AzureVnetError
from hostrouting.azure.vnet.lock import azure_vnet_locked, lock_file
from hostrouting.azure.vnet.tasks import state_file
from phases import Cancelled, CancelScope
from phases.testing import FakeClock, RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def hold(path: Path) -> int:
    """As azure-vnet does since v1.4.15."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def is_held(path: Path) -> bool:
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def try_to_take(layout: Layout, scope: CancelScope, seconds: float = 5) -> None:
    with azure_vnet_locked(layout, seconds, scope):
        pytest.fail("it was held")


def test_azure_vnets_files_are_where_its_versions_have_them() -> None:
    """Another path would read as no state, and as a lock that nobody holds."""
    layout = Layout()
    assert str(state_file(layout)) == "/var/run/azure-vnet.json"
    assert str(lock_file(layout)) == "/var/run/azure-vnet/azure-vnet.lock"


def test_where_azure_vnet_has_no_folder_nothing_is_made(layout: Layout) -> None:
    with azure_vnet_locked(layout, 0, CancelScope()):
        pass
    assert list(layout.root.iterdir()) == []


def test_the_lock_is_held_as_azure_vnet_holds_it_and_let_go(layout: Layout) -> None:
    lock_file(layout).parent.mkdir(parents=True)
    with azure_vnet_locked(layout, 0, CancelScope()):
        assert is_held(lock_file(layout))
    assert not is_held(lock_file(layout))


def test_it_is_waited_for_and_said_so(layout: Layout, clock: FakeClock) -> None:
    descriptor = hold(lock_file(layout))
    clock.call_at(3.0, lambda: os.close(descriptor))
    observer = RecordingObserver()

    @phases.task("take")
    def take(scope: CancelScope) -> float:
        with azure_vnet_locked(layout, 5, scope):
            return scope.clock.monotonic()

    taken = phases.run(take, scope=CancelScope(clock=clock), observer=observer)
    assert 3.0 <= taken < 3.2
    said = [event[2] for event in observer.events if event[0] == "progress"]
    assert said == [f"waiting for azure-vnet to let go of {lock_file(layout)}"]


def test_a_lock_that_stays_held_is_an_error_that_names_it_and_what_to_do(layout: Layout, clock: FakeClock) -> None:
    descriptor = hold(lock_file(layout))
    try:
        with pytest.raises(AzureVnetError, match=r"azure-vnet\.lock for 5 s; see who with `fuser -v "):
            try_to_take(layout, CancelScope(clock=clock))
    finally:
        os.close(descriptor)
    assert clock.monotonic() >= 5


def test_a_cancel_ends_the_wait(layout: Layout, clock: FakeClock) -> None:
    descriptor = hold(lock_file(layout))
    scope = CancelScope(clock=clock)
    clock.call_at(1.0, lambda: scope.cancel("enough"))
    try:
        with pytest.raises(Cancelled, match="enough"):
            try_to_take(layout, scope, 600)
    finally:
        os.close(descriptor)


def test_a_lock_that_cant_be_opened_is_an_error(layout: Layout) -> None:
    lock_file(layout).mkdir(parents=True)
    with pytest.raises(AzureVnetError, match="can't open azure-vnet's lock .*: Is a directory"):
        try_to_take(layout, CancelScope(), 0)
