"""Judge many hosts from their snapshots, and group the hosts that have the same result."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from ipaddress import IPv4Network
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from hostrouting.config.routing import Config, StaticRoute
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.snapshot_backend import SnapshotBackend
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.jsonable import JsonObject
from hostrouting.overlap.check import check_overlap, unjudged
from hostrouting.overlap.findings import FindingKind, OverlapReport, UnknownReason, Verdict
from phases import CancelScope

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    SnapshotSource = Snapshot | str | os.PathLike[str] | Mapping[str, Any]
    # Each source with its number.
    _Sources = tuple[tuple[int, SnapshotSource], ...]
    # The result that all hosts of a group share, and for each group the report of its first host and the names of all
    # hosts.
    _Signature = tuple[Verdict, tuple["GroupFailure", ...], tuple[StaticRoute, ...], UnknownReason | None, bool | None]
    _Groups = dict[_Signature, tuple[OverlapReport, list[str]]]

# The number of snapshots in a portion, and the maximum number of portions in progress.
_AT_ONCE, _UNDER_WAY = 16, 64

# A host with 115,000 routes takes 6 s and 190 MiB; a malicious snapshot may take any amount of both.
_MIB_MAX = 16
_SECONDS_A_MIB, _MEMORY_A_BYTE = 0.6, 64
# A host with 200 interfaces has 800 possible events.
_TIMES_WITH_EVENTS = 10

# The stack of a thread (8 MiB), and the address space that glibc reserves for its arena (twice 64 MiB until it is
# aligned).
_THREAD_BYTES = 136 << 20


@attrs.frozen
class GroupFailure(JsonObject):
    """A failure that all hosts of a group have.

    Args:
        kind: the kind of the failure.
        cidr: the expected CIDR.
        devs: the interfaces that packets leave through, and those that would carry them otherwise, sorted, or empty if
            packets don't leave. Both are listed because it differs from host to host which of eight similar interfaces
            wins.
    """

    kind: FindingKind
    cidr: IPv4Network
    devs: tuple[str, ...]


@attrs.frozen
class HostGroup(JsonObject):
    """Hosts that share the same verdict, failures and fix, or the same kind of reason.

    Args:
        verdict: the verdict of each host.
        failures: the failures of each host.
        fix: the entries that fix everything that routes can fix.
        hosts: the names of the hosts, in the order of the snapshots.
        report: the report of the first host. Details such as addresses may differ on the other hosts.
    """

    verdict: Verdict
    failures: tuple[GroupFailure, ...]
    fix: tuple[StaticRoute, ...]
    hosts: tuple[str, ...]
    report: OverlapReport


@attrs.frozen
class FleetReport(JsonObject):
    """The result of ``judge``.

    Args:
        groups: the groups without failures, then those with failures, then those that couldn't be judged. The largest
            group of each kind comes first.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = ("schema", "counts", "one_event_away", "groups")

    groups: tuple[HostGroup, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """Return how many hosts have each verdict."""
        return {
            verdict: sum(len(group.hosts) for group in self.groups if group.verdict is verdict) for verdict in Verdict
        }

    @property
    def one_event_away(self) -> int | None:
        """Return how many hosts a single event would break permanently, or None if no events were requested."""
        told = [group for group in self.groups if group.report.events is not None]
        return sum(len(group.hosts) for group in told if group.report.is_one_event_away) if told else None


def judge(
    snapshots: Iterable[SnapshotSource],
    config: Config,
    executor: Executor | None = None,
    *,
    max_mib: int = _MIB_MAX,
    scope: CancelScope | None = None,
    one_event: bool = False,
) -> FleetReport:
    """Judge the snapshots of many hosts, and group the hosts by result.

    Args:
        snapshots: the output of ``hostrouting snapshot`` from each host, as the path of a file, as a document, or as a
            ``Snapshot``. The workers of an executor must be able to read the file. A document without a host name gets
            the name of its file, without ``.json``.
        config: the config with the expected CIDRs, which is the same for every host.
        executor: the executor that runs the work, such as Dask's ``distributed.Client().get_executor()`` on a cluster.
            It isn't shut down. If None, one process runs on each core of this machine.
        max_mib: the maximum size of a file in MiB. For processes on this machine, it also limits the time and the
            memory for each snapshot.
        scope: the scope that can cancel the work, and that receives its progress.
        one_event: whether to group hosts also by whether a single event would break them permanently, which takes
            several times as long.

    Returns:
        The groups. A snapshot that can't be read is ``unknown``, with a reason that begins with ``no-snapshot``. The
        reason begins with ``check-failed`` if judging it takes too much time or memory, or ends a process on this
        machine.

    Raises:
        HostRoutingError: a worker of the executor died, for example for lack of memory.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    scope = CancelScope() if scope is None else scope
    total = len(snapshots) if isinstance(snapshots, Sized) else None
    groups: _Groups = {}
    done = 0
    left = enumerate(snapshots, 1)
    portions = map(_Portion, iter(lambda: tuple(islice(left, _AT_ONCE)), ()))
    if executor is None:
        seconds = max_mib * _SECONDS_A_MIB * (_TIMES_WITH_EVENTS if one_event else 1)
        work = _Work(config, max_mib, seconds, one_event)
        results = _results_here(portions, work, scope)
    else:
        results = _results_of(executor, portions, _Work(config, max_mib, one_event=one_event), scope)
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
    """Start workers, which end if this block fails or this process is killed."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import Pipe

    ended, lifeline = Pipe(duplex=False)
    # A worker starts with the address space of this process and has one more thread.
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
    """Set up a worker, which ends with its parent process, reacts to SIGTERM as usual, and has limited memory."""

    def await_end() -> None:
        ended.poll(None)
        os._exit(1)

    lifeline.close()
    threading.Thread(target=await_end, daemon=True).start()
    # Ctrl-C reaches all processes of a terminal, but only the parent process may react to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([bytes_max, *allowed]), hard))


@attrs.define(eq=False)
class _Portion:
    """Snapshots for a worker, and the future of their results."""

    snapshots: _Sources
    future: Future[_Groups] | None = None

    @property
    def is_judged(self) -> bool:
        """Return whether a worker has judged these snapshots."""
        return self.future is not None and self.future.done() and self.future.exception() is None

    def hand_to(self, pool: Executor, work: _Work) -> Future[_Groups]:
        """Give these snapshots to a worker, unless one has judged them."""
        if self.future is None or not self.is_judged:
            self.future = pool.submit(work, self.snapshots)
        return self.future


def _results(
    pool: Executor, portions: Iterator[_Portion], begun: deque[_Portion], work: _Work, scope: CancelScope
) -> Iterator[_Groups]:
    """Yield the results of the workers in the order of the snapshots, so that every executor gives the same report.

    Args:
        pool: the workers.
        portions: the portions to start. No more are taken than may be in progress.
        begun: the portions whose results haven't been yielded yet.
        work: the work to run.
        scope: the scope that can cancel the waits.
    """
    waiting = deque(portion.hand_to(pool, work) for portion in begun)
    while True:
        for portion in islice(portions, max(0, _UNDER_WAY - len(begun))):
            begun.append(portion)
            waiting.append(portion.hand_to(pool, work))
        if not waiting:
            return
        yield _result(waiting.popleft(), scope)
        begun.popleft()


def _result(future: Future[_Groups], scope: CancelScope) -> _Groups:
    is_done = threading.Event()
    future.add_done_callback(lambda _: is_done.set())
    scope.wait(is_done)
    return future.result()


def _results_of(executor: Executor, portions: Iterator[_Portion], work: _Work, scope: CancelScope) -> Iterator[_Groups]:
    """Yield the results from the workers of the caller's executor."""
    begun: deque[_Portion] = deque()
    try:
        yield from _results(executor, portions, begun, work, scope)
    except BrokenExecutor as error:
        raise HostRoutingError(f"can't judge the snapshots: {error}") from error
    finally:
        for portion in begun:
            if portion.future is not None:
                portion.future.cancel()


def _results_here(portions: Iterator[_Portion], work: _Work, scope: CancelScope) -> Iterator[_Groups]:
    """Yield the results from processes on this machine, with a report for each snapshot that ends its process."""
    begun: deque[_Portion] = deque()
    while True:
        # If this fails, the workers end here. Before Python 3.12, the thread that notices this prints a traceback for
        # each cancelled future.
        with _processes(len(os.sched_getaffinity(0)), work) as pool:
            try:
                yield from _results(pool, portions, begun, work, scope)
                return
            except BrokenExecutor:
                begun = deque(chain.from_iterable(map(_alone, begun)))
        _find_culprit(begun, work, scope)


def _alone(portion: _Portion) -> Iterable[_Portion]:
    return (portion,) if portion.is_judged else (_Portion((snapshot,)) for snapshot in portion.snapshots)


def _find_culprit(begun: Iterable[_Portion], work: _Work, scope: CancelScope) -> None:
    """Judge the snapshots that were in progress when a process died, one by one, until one of them ends its process."""
    with _processes(1, work) as pool:
        for portion in begun:
            try:
                _result(portion.hand_to(pool, work), scope)
            except BrokenExecutor:
                why = "the process that judged it died, for example for lack of memory"
                portion.future = Future()
                portion.future.set_result(_grouped(work.row(*snapshot, why) for snapshot in portion.snapshots))
                return


class _TooSlowError(Exception):
    """The error for a snapshot that takes more processor time than allowed."""


@attrs.frozen
class _Work:
    """The task of a worker, which is to judge snapshots and group them.

    Args:
        config: the config with the expected CIDRs.
        max_mib: the maximum size of a file in MiB.
        seconds: the maximum processor time for each snapshot, or 0 for no limit.
        one_event: whether to predict events as well.
    """

    config: Config
    max_mib: int
    seconds: float = 0
    one_event: bool = False

    def __call__(self, snapshots: _Sources) -> _Groups:
        return _grouped(self._judge_one(*snapshot) for snapshot in snapshots)

    def row(self, number: int, given: SnapshotSource, why: str) -> OverlapReport:
        """Return the report of a snapshot that couldn't be judged."""
        return unjudged(self.config.route_overlap, UnknownReason.CHECK_FAILED, why, host=_name_of(number, given))

    def _judge_one(self, number: int, given: SnapshotSource) -> OverlapReport:
        try:
            with _limited(self.seconds):
                return self._judge_unlimited(number, given)
        except _TooSlowError:
            why = f"judging it takes more than {self.seconds:g} s of processor time"
        except MemoryError:
            why = "judging it takes more memory than a process may have"
        # The memory for judging it is free again here.
        return self.row(number, given, why)

    def _judge_unlimited(self, number: int, given: SnapshotSource) -> OverlapReport:
        name = _name_of(number, given)
        try:
            if isinstance(given, Snapshot):
                snapshot = given
            elif isinstance(given, Mapping):
                snapshot = Snapshot.from_document(given)
            else:
                snapshot = Snapshot.load(given, bytes_max=self.max_mib << 20)
        except HostRoutingError as error:
            why = "; ".join(str(error).splitlines())
            return unjudged(self.config.route_overlap, UnknownReason.NO_SNAPSHOT, why, host=name)
        report = check_overlap(self.config, SnapshotBackend(snapshot), CancelScope(), host=snapshot.host or name)
        if not (self.one_event and report.cidrs):
            return report
        from hostrouting.overlap.one_event import anticipate

        return attrs.evolve(report, events=anticipate(self.config, snapshot, CancelScope()))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise ``_TooSlowError`` if the block takes more than the given processor time.

    0 means no limit. Only the main thread of a process can be limited this way.
    """

    def stop(*_: object) -> None:
        raise _TooSlowError

    if not seconds:
        yield
        return
    signal.signal(signal.SIGPROF, stop)
    # The signal repeats, in case Python drops the first exception, for example in a finalizer.
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


def _grouped(reports: Iterable[OverlapReport]) -> _Groups:
    groups: _Groups = {}
    for report in reports:
        signature = (report.verdict, _failures(report), report.fix.routes, report.reason_kind, report.is_one_event_away)
        groups.setdefault(signature, (report, []))[1].append(report.host)
    return groups


def _failures(report: OverlapReport) -> tuple[GroupFailure, ...]:
    failures = (
        GroupFailure(each.kind, each.cidr, tuple(sorted((*each.devs, *each.behind)))) for each in report.findings
    )
    # The connections of a host may fail in the same way from several sources.
    return tuple(dict.fromkeys(failures))
