"""Check many hosts using their snapshots, in several processes."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.config.routing import Config
from hostrouting.fleet.groups import FleetReport, Groups, HostGroup, grouped
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import backends_of
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.text import shown
from hostrouting.overlap.check import check_families, unjudged
from hostrouting.overlap.findings import OverlapReport, UnknownReason, Verdict
from phases import CancelScope

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    SnapshotSource = Snapshot | str | os.PathLike[str] | Mapping[str, Any]
    # Each source with its number.
    _Sources = tuple[tuple[int, SnapshotSource], ...]

# Snapshots per portion, and the maximum number of portions in progress.
_AT_ONCE, _UNDER_WAY = 16, 64

# A host with 115,000 routes takes 6 s and 190 MiB; a malicious snapshot may need arbitrary time and memory.
_MIB_MAX = 16
_SECONDS_A_MIB, _MEMORY_A_BYTE = 0.6, 64
# There are 800 possible events on a host with 200 interfaces.
_TIMES_WITH_EVENTS = 10

# A thread's stack (8 MiB), and the address space that glibc reserves for its arena (twice 64 MiB, to align it).
_THREAD_BYTES = 136 << 20


def judge(
    snapshots: Iterable[SnapshotSource],
    config: Config,
    executor: Executor | None = None,
    *,
    max_mib: int = _MIB_MAX,
    scope: CancelScope | None = None,
    one_event: bool = False,
) -> FleetReport:
    """Check the snapshots of many hosts, and group the hosts by result.

    Args:
        snapshots: the output of ``hostrouting snapshot`` from each host, as a path, a document, or a ``Snapshot``. An
            executor's workers must be able to read the files. If a document has no host name, its file name without
            ``.json`` is used.
        config: the config with the expected CIDRs, used for every host.
        executor: the executor to use, such as Dask's ``distributed.Client().get_executor()`` on a cluster. It isn't
            shut down. If None, one process per core is started on this machine.
        max_mib: maximum file size in MiB. Without an executor, this also determines the time and memory limits for each
            snapshot.
        scope: cancellation scope, which also receives progress updates.
        one_event: whether to also predict if a single event would break a host permanently, and group hosts by the
            result. This takes several times as long.

    Returns:
        The groups. For an unreadable snapshot, the verdict is ``unknown`` and the reason starts with ``no-snapshot``.
        The reason starts with ``check-failed`` if the check exceeds its time or memory limit or kills its worker
        process.

    Raises:
        HostRoutingError: one of the executor's workers died, for example because it ran out of memory.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    if not isinstance(config, Config):
        raise TypeError(f"judge takes a Config, not {shown(config)}; make one with Config.load or Config.from_mapping")
    scope = CancelScope() if scope is None else scope
    total = len(snapshots) if isinstance(snapshots, Sized) else None
    groups: Groups = {}
    done = 0
    left = enumerate(snapshots, 1)
    portions = iter(lambda: tuple(islice(left, _AT_ONCE)), ())
    seconds = max_mib * _SECONDS_A_MIB * (_TIMES_WITH_EVENTS if one_event else 1) if executor is None else 0.0
    work = _Work(config, max_mib, seconds, one_event)
    results = _results_here(portions, work, scope) if executor is None else _results_of(executor, portions, work, scope)
    for found in results:
        for signature, (report, hosts) in found.items():
            groups.setdefault(signature, (report, []))[1].extend(hosts)
            done += len(hosts)
        scope.progress("judging the snapshots", done / total if total else None)
    made = [
        HostGroup(verdict, failures, fix, tuple(hosts), report)
        for (verdict, failures, fix, *_), (report, hosts) in groups.items()
    ]
    order = [*Verdict]
    return FleetReport(tuple(sorted(made, key=lambda each: (order.index(each.verdict), -len(each.hosts)))))


@contextmanager
def _processes(count: int, work: _Work) -> Iterator[Executor]:
    """Start worker processes that exit if this block fails or this process is killed."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import Pipe

    ended, lifeline = Pipe(duplex=False)
    # A worker inherits the address space of this process and starts one more thread.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    bytes_max = pages * resource.getpagesize() + _THREAD_BYTES + (work.max_mib << 20) * _MEMORY_A_BYTE
    with (
        ended,
        lifeline,
        ProcessPoolExecutor(count, initializer=_begin_to_work, initargs=(ended, lifeline, bytes_max)) as pool,
    ):
        try:
            yield pool
        except BaseException:
            lifeline.close()
            raise


def _begin_to_work(ended: Connection, lifeline: Connection, bytes_max: int) -> None:
    """Initialize a worker: exit with the parent process, restore the default SIGTERM action, and limit memory."""

    def await_end() -> None:
        ended.poll(None)
        os._exit(1)

    lifeline.close()
    threading.Thread(target=await_end, daemon=True).start()
    # Ctrl-C signals the whole foreground process group, but only the parent should handle it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([bytes_max, *allowed]), hard))


def _results_of(executor: Executor, portions: Iterator[_Sources], work: _Work, scope: CancelScope) -> Iterator[Groups]:
    """Yield the results from the caller's executor."""
    waiting: deque[Future[Groups]] = deque()
    try:
        yield from _results(executor, portions, deque(), waiting, work, scope)
    except BrokenExecutor as error:
        raise HostRoutingError(f"can't judge the snapshots: {error}") from error
    finally:
        for future in waiting:
            future.cancel()


def _results_here(
    portions: Iterator[_Sources], work: _Work, scope: CancelScope, *, most: int = _UNDER_WAY
) -> Iterator[Groups]:
    """Yield the results from local processes, including a report for each snapshot that kills its process.

    The portions in progress when a process died are judged again, one at a time, and the last suspects one by one.
    """
    while True:
        begun: deque[_Sources] = deque()
        # On failure, the workers exit here. Before Python 3.12, the pool's manager thread then prints a traceback for
        # each cancelled future.
        with _processes(min(most, len(os.sched_getaffinity(0))), work) as pool:
            try:
                yield from _results(pool, portions, begun, deque(), work, scope, most=most)
                return
            except BrokenExecutor:
                pass
        if len(begun) == len(begun[0]) == 1:
            why = "the process that judged it died, for example for lack of memory"
            yield grouped([work.unjudged(*begun[0][0], why)])
        else:
            again = begun if len(begun) > 1 else ((snapshot,) for snapshot in begun[0])
            yield from _results_here(iter(again), work, scope, most=1)


def _results(
    pool: Executor,
    portions: Iterator[_Sources],
    begun: deque[_Sources],
    waiting: deque[Future[Groups]],
    work: _Work,
    scope: CancelScope,
    *,
    most: int = _UNDER_WAY,
) -> Iterator[Groups]:
    """Yield the workers' results in snapshot order, so that the report doesn't depend on the executor.

    Args:
        pool: the workers.
        portions: the portions to submit. The iterator is consumed lazily to limit the number of portions in progress.
        begun: receives the submitted portions whose results haven't been yielded yet.
        waiting: receives the futures of these portions.
        work: the work to run.
        scope: cancellation scope for the waits.
        most: the maximum number of portions in progress.
    """
    while True:
        for portion in islice(portions, most - len(waiting)):
            begun.append(portion)
            waiting.append(pool.submit(work, portion))
        if not waiting:
            return
        yield _result(waiting.popleft(), scope)
        begun.popleft()


def _result(future: Future[Groups], scope: CancelScope) -> Groups:
    is_done = threading.Event()
    future.add_done_callback(lambda _: is_done.set())
    scope.wait(is_done)
    return future.result()


class _TooSlowError(Exception):
    """The error for a snapshot that exceeds its CPU time limit."""


@attrs.frozen
class _Work:
    """A worker's task: check a batch of snapshots and group the results.

    Args:
        config: the config with the expected CIDRs.
        max_mib: maximum file size in MiB.
        seconds: CPU time limit for each snapshot, or 0 for no limit.
        one_event: whether to also predict verdicts after events.
    """

    config: Config
    max_mib: int
    seconds: float
    one_event: bool

    def __call__(self, snapshots: _Sources) -> Groups:
        return grouped(self._judge_one(*snapshot) for snapshot in snapshots)

    def unjudged(
        self, number: int, given: SnapshotSource, why: str, kind: UnknownReason = UnknownReason.CHECK_FAILED
    ) -> OverlapReport:
        """Return the report for a snapshot that couldn't be checked."""
        return attrs.evolve(unjudged(self.config.route_overlap, kind, why), host=_name_of(number, given))

    def _judge_one(self, number: int, given: SnapshotSource) -> OverlapReport:
        try:
            with _limited(self.seconds):
                return self._judge_unlimited(number, given)
        except _TooSlowError:
            why = f"judging it takes more than {self.seconds:g} s of processor time"
        except MemoryError:
            why = "judging it takes more memory than a process may have"
        # At this point, the memory used by the check has been freed.
        return self.unjudged(number, given, why)

    def _judge_unlimited(self, number: int, given: SnapshotSource) -> OverlapReport:
        try:
            if isinstance(given, Snapshot):
                snapshot = given
            elif isinstance(given, Mapping):
                snapshot = Snapshot.from_document(given)
            else:
                snapshot = Snapshot.load(given, bytes_max=self.max_mib << 20)
        except HostRoutingError as error:
            why = "; ".join(str(error).splitlines())
            return self.unjudged(number, given, why, UnknownReason.NO_SNAPSHOT)
        report = check_families(self.config, backends_of(snapshot), CancelScope())
        report = attrs.evolve(report, host=snapshot.host or _name_of(number, given))
        if not (self.one_event and report.cidrs):
            return report
        from hostrouting.overlap.one_event import anticipate

        return attrs.evolve(report, events=anticipate(self.config, snapshot, CancelScope()))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise ``_TooSlowError`` if the block exceeds a CPU time limit.

    0 means no limit. This only works in the main thread of a process.
    """

    def stop(*_: object) -> None:
        raise _TooSlowError

    if not seconds:
        yield
        return
    signal.signal(signal.SIGPROF, stop)
    # Repeat the signal in case Python drops the first exception, for example in a finalizer.
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)


def _name_of(number: int, given: SnapshotSource) -> str:
    if isinstance(given, (str, os.PathLike)):
        return Path(given).name.removesuffix(".json")
    return f"snapshot {number}"
