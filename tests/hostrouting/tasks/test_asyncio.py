"""Tests of the functions in a coroutine, called as docs/howto/embed.md shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import attrs
import pytest
from node import shadowed_kernel
from wanted import ROUTE, SHADOWED, config

import phases
from hostrouting import (
    Configure,
    Host,
    Layout,
    Snapshot,
    check,
    diff,
    examine,
    explain,
    judge,
    plan,
    snapshot,
)
from hostrouting.backend import Facts, ForwardingBackend, RouteBackend
from hostrouting.testing import FakeSystemd
from phases import CancelScope

CONFIG = config(ROUTE, cidrs=[SHADOWED])
TAKEN = Snapshot((), (), (), ())


class Slow(ForwardingBackend):
    """A backend that calls a function before each read of the facts."""

    def __init__(self, inner: RouteBackend, wait: Callable[[], None]) -> None:
        super().__init__(inner)
        self.wait = wait

    def facts(self) -> Facts:
        self.wait()
        return super().facts()


@attrs.frozen
class Call:
    """A call of a function whose reads take until its scope ends.

    Args:
        installed: the host.
        scope: the scope of the call.
        begun: a function to call at the begin of each read.
    """

    installed: Host
    scope: CancelScope
    begun: Callable[[], object]

    @property
    def host(self) -> Host:
        return Host(
            Slow(self.installed.routes, self.wait), self.installed.units, self.installed.layout
        )

    @property
    def snapshots(self) -> Iterator[Snapshot]:
        self.wait()
        yield TAKEN

    def wait(self) -> None:
        self.begun()
        with suppress(phases.Cancelled):
            self.scope.wait(Event())


FUNCTIONS: dict[str, Callable[[Call], object]] = {
    "check": lambda call: check(CONFIG, host=call.host, scope=call.scope),
    "plan": lambda call: plan(CONFIG, host=call.host, scope=call.scope),
    "explain": lambda call: explain("172.16.1.9", CONFIG, host=call.host, scope=call.scope),
    "diff": lambda call: diff(TAKEN, None, CONFIG, host=call.host, scope=call.scope),
    "snapshot": lambda call: snapshot(host=call.host, scope=call.scope),
    "judge": lambda call: judge(call.snapshots, CONFIG, scope=call.scope),
    "examine": lambda call: examine(CONFIG, host=call.host, scope=call.scope),
}


@pytest.fixture
def installed(tmp_path: Path) -> Host:
    layout = Layout(tmp_path)
    host = Host(shadowed_kernel(), FakeSystemd(layout), layout)
    phases.run(Configure(CONFIG, host=host))
    return host


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_cancelled_coroutine_ends_the_function(name: str, installed: Host) -> None:
    """The function is in the midst of a read, and begins no other one."""
    reads: list[None] = []

    async def cancel_in_the_midst() -> None:
        is_begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def begun() -> None:
            reads.append(None)
            loop.call_soon_threadsafe(is_begun.set)

        async def cause() -> BaseException | None:
            def function(*, scope: CancelScope | None = None) -> object:
                assert scope is not None
                return FUNCTIONS[name](Call(installed, scope, begun))

            with pytest.raises(asyncio.CancelledError) as caught:
                await phases.call_async(function)
            return caught.value.__cause__

        running = asyncio.create_task(cause())
        await asyncio.wait_for(is_begun.wait(), 60)
        running.cancel()
        # A function whose last read this was may return.
        assert isinstance(await running, (phases.Cancelled, type(None)))

    asyncio.run(cancel_in_the_midst())
    assert len(reads) == 1


def below(scope: CancelScope) -> Callable[[], None]:
    """Return a function that waits as the functions do, in a child of their scope."""
    return lambda: scope.child().wait(Event())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_deadline_of_its_scope_ends_the_function_with_a_timeout(
    name: str, installed: Host
) -> None:
    """The child's ``Cancelled`` would end the caller's own run, which wasn't cancelled."""
    scope = CancelScope(timeout=0.05)
    with pytest.raises(phases.TimedOut):
        FUNCTIONS[name](Call(installed, scope, below(scope)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_deadline_of_an_outer_scope_cancels_the_function(name: str, installed: Host) -> None:
    scope = CancelScope(timeout=0.05).child()
    with pytest.raises(phases.Cancelled, match="an outer deadline passed"):
        FUNCTIONS[name](Call(installed, scope, below(scope)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_deadline_in_a_coroutine_is_the_coroutines(name: str, installed: Host) -> None:
    def function(*, scope: CancelScope | None = None) -> object:
        assert scope is not None
        return FUNCTIONS[name](Call(installed, scope, below(scope)))

    async def call(timeout: float | None, scope: CancelScope | None) -> None:
        await asyncio.wait_for(phases.call_async(function, scope=scope), timeout)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(call(0.05, None))
    with pytest.raises(phases.TimedOut):
        asyncio.run(call(None, CancelScope(timeout=0.05)))
