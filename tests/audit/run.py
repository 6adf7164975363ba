"""Audit blocks of hosts in parallel processes until enough lookups have been compared."""

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
from worlds.ipv6 import World6, world

from audit.events import EventAudit, hosts_for_events
from audit.examine import HostAudit
from audit.features import with_features
from audit.figures import SHOWN, Figures
from audit.hosts import hosts
from audit.sockets import SocketAudit

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    from audit.examine import Audit
    from audit.figures import Share
    from audit.hosts import Audited

T = TypeVar("T")

# There are four plain hosts for each odd host.
_PLAIN_EACH = 4
# Block sizes for long and short audits: odd hosts, socket hosts, event hosts, IPv6 hosts, and random addresses per
# expected CIDR. A host with events takes as long as five hosts with sockets.
_MANY, _FEW = (10, 20, 12, 16, 1024), (1, 1, 1, 1, 32)
# Audits with up to this many lookups are short.
_LOOK_UPS = 5_000
# Each block has its own IPv6 hosts.
_BLOCKS_MAX = 1 << 20
# Timeout per host; most hosts take a tenth of this.
_HOST_SECONDS = 120


def audit(lookups: int, number: int, progress: Callable[[Figures], None]) -> Figures:
    """Audit hosts until enough lookups have been compared with the kernel.

    Args:
        lookups: the minimum number of lookups.
        number: seed for the random number generator.
        progress: called with the figures after each block.
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
            # Process results in order, so that every run includes the same blocks.
            add(running.popleft().result())
            if figures.lookups >= lookups:
                break
            running.append(pool.submit(examine_block, number, block, *_MANY))
        pool.shutdown(cancel_futures=True)
    return figures


def examine_block(number: int, block: int, odd: int, seen: int, met: int, six: int, addresses: int) -> Figures:
    """Generate and audit a block of hosts.

    Args:
        number: seed for the random number generator.
        block: the block number.
        odd: number of hosts with features that a snapshot may not represent.
        seen: number of hosts to compare with sockets.
        met: number of hosts on which to trigger events.
        six: number of IPv6 hosts, which are also compared with sockets.
        addresses: number of random addresses to check per expected CIDR.
    """
    figures = Figures()
    plain = drawn(f"{number} plain {block}", odd * _PLAIN_EACH, hosts(is_odd=False))
    for host in (*plain, *drawn(f"{number} odd {block}", odd, hosts(is_odd=True))):
        _examine(HostAudit(host, addresses), figures)
    for host in for_sockets(f"{number} seen {block}", seen):
        # Sockets are slower than lookups, so check fewer addresses.
        _examine(SocketAudit(host, 16), figures)
    for host in drawn(f"{number} events {block}", met, hosts_for_events()):
        _examine(EventAudit(host, addresses), figures)
    for world6 in (world((number * _BLOCKS_MAX + block) * six + n) for n in range(six)):
        _examine(SocketAudit(world6, 40 if world6.tries == 1 else 20), figures)
    return figures


class _TooLongError(Exception):
    """A host that takes minutes."""


def _examine(host_audit: Audit, figures: Figures) -> None:
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_HOST_SECONDS)
    try:
        host_audit.run()
    except _TooLongError:
        host_audit.share.wrong["live"] += 1
        host_audit.mistakes.append(f"it takes longer than {_HOST_SECONDS} s")
    finally:
        signal.alarm(0)
    _share_of(host_audit, figures).add(host_audit.share)
    if host_audit.mistakes and len(figures.mistakes) < SHOWN:
        config = host_audit.config.to_mapping()
        cycle = [f"  again and again: {step}" for step in host_audit.host.cycle]
        figures.mistakes.append(
            "\n".join((*host_audit.mistakes, *(f"  {step}" for step in host_audit.host.steps), *cycle, f"  {config}"))
        )


def _share_of(host_audit: Audit, figures: Figures) -> Share:
    host = host_audit.host
    if isinstance(host, World6):
        return figures.ipv6
    if isinstance(host_audit, EventAudit):
        return figures.events
    return figures.seen if host.is_seen else figures.odd if host.is_odd else figures.plain


def _give_up(*_: object) -> None:
    raise _TooLongError


def for_sockets(name: str, most: int) -> list[Audited]:
    """Return ``most`` random hosts for ``SocketAudit``. The name is the seed."""
    chance = random.Random(name)
    return [with_features(question, chance) for question in drawn(name, most, sources.questions())]


def drawn(name: str, most: int, strategy: SearchStrategy[T]) -> list[T]:
    """Return ``most`` random hosts. The name is the seed."""
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
