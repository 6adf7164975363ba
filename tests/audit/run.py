"""Examine blocks of hosts in parallel processes until there have been enough lookups."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from worlds import sources

from audit.events import EventAudit, hosts_for_events
from audit.examine import HostAudit
from audit.features import with_features
from audit.figures import SHOWN, Figures
from audit.hosts import hosts
from audit.sockets import SocketAudit

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    from audit.hosts import Audited

T = TypeVar("T")

# There are four plain hosts for each odd host.
_PLAIN_EACH = 4
# The size of a block in a long audit and in a short one: its odd hosts, the hosts that sockets judge, the hosts with
# events, and the random addresses in each expected CIDR of a host.
_MANY, _FEW = (10, 20, 48, 1024), (2, 8, 1, 64)
# A short audit has at most this many lookups.
_LOOK_UPS = 5_000
# Most hosts take a tenth of this time.
_HOST_SECONDS = 120


def audit(lookups: int, number: int, progress: Callable[[Figures], None]) -> Figures:
    """Examine hosts until enough lookups have been compared with the kernel.

    Args:
        lookups: the smallest number of lookups.
        number: the seed of all random choices.
        progress: a function to call with the figures after each block.
    """
    figures, start = Figures(), time.monotonic()

    def add(block: Figures) -> None:
        figures.add(block)
        figures.seconds = time.monotonic() - start
        progress(figures)

    if lookups <= _LOOK_UPS:
        for block in count():
            add(examine_block(number, block, *_FEW))
            if figures.lookups >= lookups:
                return figures
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        running = deque(pool.submit(examine_block, number, block, *_MANY) for block in range(workers + 1))
        for block in count(workers + 1):
            # Results are taken in order, so that every run counts the same blocks.
            add(running.popleft().result())
            if figures.lookups >= lookups:
                break
            running.append(pool.submit(examine_block, number, block, *_MANY))
        pool.shutdown(cancel_futures=True)
    return figures


def examine_block(number: int, block: int, odd: int, seen: int, met: int, addresses: int) -> Figures:
    """Draw a block of hosts and examine them.

    Args:
        number: the seed of the audit.
        block: the number of the block.
        odd: the number of hosts with features that a snapshot may not represent.
        seen: the number of hosts that sockets judge.
        met: the number of hosts to which events happen.
        addresses: the number of random addresses to check in each expected CIDR of a host.
    """
    figures = Figures()
    plain = drawn(f"{number} plain {block}", odd * _PLAIN_EACH, hosts(is_odd=False))
    for host in (*plain, *drawn(f"{number} odd {block}", odd, hosts(is_odd=True))):
        _examine(HostAudit(host, addresses), figures)
    for host in for_sockets(f"{number} seen {block}", seen):
        # Sockets take longer than lookups, so fewer addresses are checked.
        _examine(SocketAudit(host, 16), figures)
    for host in drawn(f"{number} events {block}", met, hosts_for_events()):
        _examine(EventAudit(host, addresses), figures)
    return figures


class _TooLongError(Exception):
    """A host that takes minutes."""


def _examine(host_audit: HostAudit, figures: Figures) -> None:
    host = host_audit.host
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_HOST_SECONDS)
    try:
        host_audit.run()
    except _TooLongError:
        host_audit.share.wrong["live"] += 1
        host_audit.mistakes.append(f"it takes longer than {_HOST_SECONDS} s")
    finally:
        signal.alarm(0)
    if isinstance(host_audit, EventAudit):
        share = figures.events
    else:
        share = figures.seen if host.is_seen else figures.odd if host.is_odd else figures.plain
    share.add(host_audit.share)
    if host_audit.mistakes and len(figures.mistakes) < SHOWN:
        config = host_audit.config.to_mapping()
        cycle = [f"  again and again: {step}" for step in host.cycle]
        figures.mistakes.append(
            "\n".join((*host_audit.mistakes, *(f"  {step}" for step in host.steps), *cycle, f"  {config}"))
        )


def _give_up(*_: object) -> None:
    raise _TooLongError


def for_sockets(name: str, most: int) -> list[Audited]:
    """Return ``most`` random hosts that sockets judge. The same name always yields the same hosts."""
    chance = random.Random(name)
    return [with_features(question, chance) for question in drawn(name, most, sources.questions())]


def drawn(name: str, most: int, strategy: SearchStrategy[T]) -> list[T]:
    """Return ``most`` random hosts. The same name always yields the same hosts."""
    found: list[T] = []

    @seed(name)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(host: T) -> None:
        found.append(host)

    draw()
    return found
