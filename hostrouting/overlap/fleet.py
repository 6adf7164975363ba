"""Many recorded hosts: each is judged by itself, and those of which the same is to be said are one group."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, nullcontext
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from hostrouting.config.routing import Config, StaticRoute
from hostrouting.kernel.recording import SnapshotBackend
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.jsonable import JsonObject
from hostrouting.overlap.check import check_overlap, unjudged
from hostrouting.overlap.findings import FindingKind, OverlapReport, UnknownReason, Verdict
from phases import CancelScope

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    Recording = Snapshot | str | os.PathLike[str] | Mapping[str, Any]
    # What is the same of the hosts of a group; the first one's report, and all names.
    _Signature = tuple[Verdict, tuple["GroupFailure", ...], tuple[StaticRoute, ...], UnknownReason | None]
    _Groups = dict[_Signature, tuple[OverlapReport, list[str]]]

# A worker gets a few recordings at a time, and so many of these are under way at most, however many there are.
_AT_ONCE, _UNDER_WAY = 16, 64


@attrs.frozen
class GroupFailure(JsonObject):
    """What fails on each host of a group.

    Args:
        kind: why.
        cidr: the expected CIDR.
        devs: the interfaces that it leaves by, and those that it would leave by without them, sorted; none if it
            doesn't leave. Which of eight that are alike wins differs from host to host.
    """

    kind: FindingKind
    cidr: IPv4Network
    devs: tuple[str, ...]


@attrs.frozen
class HostGroup(JsonObject):
    """Hosts with the same verdict, the same failures, and the same fix; or with a reason of the same kind.

    Args:
        verdict: of each of them.
        failures: of each of them.
        fix: the entries that mend all of it that routes can mend.
        hosts: their names, in the order of the recordings.
        report: of the first of them. What it says besides, such as addresses, may differ on the others.
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
        groups: those that are fine first, then those that fail, then those that couldn't be judged; of these the
            largest first.
    """

    schema: ClassVar[Literal[1]] = 1
    json_names = ("schema", "counts", "groups")

    groups: tuple[HostGroup, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many hosts have each verdict."""
        return {
            verdict: sum(len(group.hosts) for group in self.groups if group.verdict is verdict) for verdict in Verdict
        }


def judge(
    snapshots: Iterable[Recording],
    config: Config,
    executor: Executor | None = None,
    *,
    scope: CancelScope | None = None,
) -> FleetReport:
    """Judge many recorded hosts, and group them by what is wrong with them.

    Args:
        snapshots: what ``hostrouting snapshot`` printed on each host: the path of a file, which must be there for the
            executor's workers too, the document itself, or a ``Snapshot``. Where it names no host the file's name does,
            without ``.json``.
        config: what is expected of every one of them.
        executor: does the work, as ``distributed.Client().get_executor()`` of Dask does on a cluster; it isn't shut
            down. None: a process on each core of this machine.
        scope: ends it, and is told how far it is.

    Returns:
        The groups. A recording that can't be read is ``unknown``, with a reason that begins with ``no-recording``.

    Raises:
        HostRoutingError: a worker died, for example for want of memory.
        phases.Cancelled, phases.TimedOut: the scope ended.
    """
    scope = CancelScope() if scope is None else scope
    total = len(snapshots) if isinstance(snapshots, Sized) else None
    groups: _Groups = {}
    done = 0
    with _processes() if executor is None else nullcontext(executor) as pool:
        try:
            for found in _results(pool, snapshots, config, scope, is_ours=executor is None):
                for signature, (report, hosts) in found.items():
                    groups.setdefault(signature, (report, []))[1].extend(hosts)
                    done += len(hosts)
                scope.progress("judging the recordings", done / total if total else None)
        except BrokenExecutor as error:
            raise HostRoutingError(f"can't judge the recordings: {error}") from error
    made = [
        HostGroup(verdict, failures, fix, tuple(hosts), report)
        for (verdict, failures, fix, _), (report, hosts) in groups.items()
    ]
    order = [*Verdict]
    return FleetReport(tuple(sorted(made, key=lambda each: (order.index(each.verdict), -len(each.hosts)))))


@contextmanager
def _processes() -> Iterator[Executor]:
    """A process on each core; none outlives this block that fails, or this process, be it killed."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import Pipe

    ended, lifeline = Pipe(duplex=False)
    workers = len(os.sched_getaffinity(0))
    with (
        ended,
        lifeline,
        ProcessPoolExecutor(workers, initializer=_begin_to_work, initargs=(ended, lifeline)) as pool,
    ):
        try:
            yield pool
        except BaseException:
            lifeline.close()
            raise


def _begin_to_work(ended: Connection, lifeline: Connection) -> None:
    """Have a worker end with the process that has started it, and as any process is ended."""

    def await_end() -> None:
        ended.poll(None)
        os._exit(1)

    lifeline.close()
    threading.Thread(target=await_end, daemon=True).start()
    # Ctrl-C is for all processes of a terminal; what is to be done then is not the worker's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _results(
    pool: Executor, snapshots: Iterable[Recording], config: Config, scope: CancelScope, *, is_ours: bool
) -> Iterator[_Groups]:
    """What the workers find, in the order of the recordings, so that any executor gives the same report."""
    left = enumerate(snapshots, 1)
    portions = iter(lambda: tuple(islice(left, _AT_ONCE)), ())
    submitted = (pool.submit(_judge_some, some, config) for some in portions)
    waiting = deque(islice(submitted, _UNDER_WAY))
    try:
        while waiting:
            yield _result(waiting.popleft(), scope)
            waiting.extend(islice(submitted, 1))
    finally:
        # Where this fails our own workers end; before Python 3.12 the thread that finds them gone prints a traceback
        # for each future that was cancelled.
        for future in () if is_ours else waiting:
            future.cancel()


def _result(future: Future[_Groups], scope: CancelScope) -> _Groups:
    is_done = threading.Event()
    future.add_done_callback(lambda _: is_done.set())
    scope.wait(is_done)
    return future.result()


def _judge_some(recordings: tuple[tuple[int, Recording], ...], config: Config) -> _Groups:
    """What a worker does: judge some recordings, and group them."""
    groups: _Groups = {}
    for number, recording in recordings:
        report = _judge_one(recording, config, f"recording {number}")
        signature = (report.verdict, _failures(report), report.remedy.routes, report.reason_kind)
        groups.setdefault(signature, (report, []))[1].append(report.host)
    return groups


def _judge_one(recording: Recording, config: Config, name: str) -> OverlapReport:
    try:
        if isinstance(recording, Snapshot):
            snapshot = recording
        elif isinstance(recording, Mapping):
            snapshot = Snapshot.from_document(recording)
        else:
            name = Path(recording).name.removesuffix(".json")
            snapshot = Snapshot.load(recording)
    except HostRoutingError as error:
        return unjudged(config.route_overlap, UnknownReason.NO_RECORDING, "; ".join(str(error).splitlines()), host=name)
    return check_overlap(config, SnapshotBackend(snapshot), CancelScope(), host=snapshot.host or name)


def _failures(report: OverlapReport) -> tuple[GroupFailure, ...]:
    failures = (
        GroupFailure(each.kind, each.cidr, tuple(sorted((*each.devs, *each.behind)))) for each in report.findings
    )
    # Connections from several sources of a host fail alike.
    return tuple(dict.fromkeys(failures))
