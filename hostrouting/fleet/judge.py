"""Check the snapshots of many hosts, in several processes, and report the groups of hosts."""

from __future__ import annotations

import base64
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.fleet.groups import FleetReport, JudgedHost
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.model.errors import ConfigError, HostRoutingError, RouteError
from hostrouting.model.opening import check_path
from hostrouting.model.text import shortened, shown
from hostrouting.model.values import frozen
from hostrouting.overlap.check import unjudged
from hostrouting.overlap.difference import DiffReport
from hostrouting.overlap.findings import OverlapReport, UnknownReason, Verdict
from hostrouting.overlap.planned_host import PlannedHost
from hostrouting.overlap.printed_on_host import printed_on
from hostrouting.overlap.rehearsal import rehearse
from hostrouting.overlap.unapplied import with_next_start, with_removals
from hostrouting.tasks.arguments import to_scope
from hostrouting.tasks.queries import check_and_plan, diff
from phases import CancelScope

if TYPE_CHECKING:
    SnapshotSource = Snapshot | str | os.PathLike[str] | Mapping[str, Any]
    # Pairs of a snapshot's number and source.
    _Batch = tuple[tuple[int, SnapshotSource], ...]
    _Work = Callable[[_Batch], list[JudgedHost]]

# The maximum number of batches that an executor gets at a time, and the size of a batch.
_BATCHES = 64
_BATCH = 16
# The maximum size of a batch for a process on this machine. Starting a process takes 0.15 s, as
# long as the checks of 15 ordinary snapshots.
_LOCAL_BATCH = 256

# A broken snapshot may have any number of problems; hostrouting check --snapshot lists them all.
_SHOWN_PROBLEMS = 4

# The limits for a snapshot, because a malicious snapshot could need any time and memory. The check
# of a host with 115,000 routes takes 6 s and 190 MiB.
_MIB_MAX = 16
_SECONDS_A_MIB = 0.6
_MEMORY_A_BYTE = 64

# Python with -c searches the working directory first. So use the sys.path of this process. The
# objects of one snapshot exceed Python's usual threshold many times, and few of them are garbage.
_PROGRAM = (
    "import gc, sys; gc.set_threshold(200_000); sys.path[:] = sys.argv[1:]; "
    "from hostrouting.fleet import judge; judge.judge_stdin()"
)


def judge(
    snapshots: Iterable[SnapshotSource],
    config: Config,
    executor: Executor | None = None,
    *,
    max_mib: int = _MIB_MAX,
    scope: CancelScope | None = None,
    since: str | os.PathLike[str] | None = None,
) -> FleetReport:
    """Check the snapshots of many hosts, and group the hosts by result.

    Args:
        snapshots: the output of ``hostrouting snapshot`` from each host, as a path, a document, or
            a ``Snapshot``. An executor's workers must be able to read the files. A host is listed
            by its file's name without ``.json``, so that lists of hosts have the inventory's names.
            Files in several folders may have the same name. Their hosts' names then begin with the
            folder.
        config: the config with the expected CIDRs, used for every host.
        executor: the executor to use, such as Dask's ``distributed.Client().get_executor()`` on a
            cluster. It isn't shut down. With None, one process per core is started on this machine.
        max_mib: the largest size of a file, in MiB. Without an executor, ``max_mib`` also
            determines the time and memory limits for each snapshot.
        scope: cancels the checks, and receives their progress. After a cancellation, an executor
            still completes the batches of 16 snapshots that it has begun.
        since: a folder with an earlier snapshot of each host. A host's earlier and later files have
            the same name. For a later snapshot that isn't a file, the earlier file is
            ``HOST.json``. With ``since``, hosts are also grouped by the changes behind differing
            lookups, and by whether the snapshots can be compared. Hosts without a later snapshot
            are ``gone``.

    Returns:
        The groups. A snapshot that can't be read has the verdict ``unknown``, with a reason that
        starts with ``no-snapshot``; the group has the reason for each file. If a check exceeds its
        time or memory limit, or its process ends, the reason starts with ``check-failed``.

    Raises:
        HostRoutingError: ``since`` isn't a folder, or one of the executor's workers died, for
            example because it ran out of memory.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    if not isinstance(config, Config):
        raise TypeError(
            f"judge takes a Config, not {shown(config)}; "
            "make one with Config.load or Config.from_mapping"
        )
    is_one = isinstance(snapshots, (str, bytes, os.PathLike, Mapping, Snapshot))
    if is_one or not isinstance(snapshots, Iterable):
        raise TypeError(f"judge takes a list of snapshots or paths, not {shown(snapshots)}")
    if not isinstance(executor, Executor | None):
        raise TypeError(
            f"judge takes a concurrent.futures.Executor as executor, not {shown(executor)}"
        )
    _check_size(max_mib)
    if since is not None:
        _check_folder(since)
    earlier = set() if since is None else {*map(_stem, Path(since).glob("[!.]*.json"))}
    judging = _Judging(config, max_mib, since, _shared_names(snapshots))
    hosts = _reports(snapshots, judging, executor, to_scope(scope))
    report = FleetReport.of(hosts, time.time())
    later = {name.rpartition("/")[2] for group in report.groups for name in group.hosts}
    return attrs.evolve(report, gone=tuple(sorted(earlier - later)))


def _check_size(max_mib: object) -> None:
    wrong = f"judge(max_mib=…) takes a number of MiB, at least 1, not {shown(max_mib)}"
    if not isinstance(max_mib, int):
        raise TypeError(wrong)
    if max_mib < 1:
        raise ValueError(wrong)


def _check_folder(since: str | os.PathLike[str]) -> None:
    check_path(since, "judge(since=…)")
    if not os.path.isdir(since):  # noqa: PTH112 - Path.is_dir raises an OSError without permission
        raise HostRoutingError(
            f"can't compare with the snapshots in {os.fspath(since)}: it isn't a folder"
        )


def _reports(
    snapshots: Iterable[SnapshotSource],
    judging: _Judging,
    executor: Executor | None,
    scope: CancelScope,
) -> Iterator[JudgedHost]:
    """Yield a judged host for each snapshot, in the snapshots' order even with an executor."""
    numbered = enumerate(snapshots, 1)
    total = len(snapshots) if isinstance(snapshots, Sized) else None
    done = 0
    with scope, ExitStack() as stack:
        batches = _BATCHES
        size = _BATCH
        work: _Work = judging.judge
        if executor is None:
            batches = len(os.sched_getaffinity(0))
            size = _LOCAL_BATCH
            executor = stack.enter_context(ThreadPoolExecutor(batches))
            processes = scope.child()
            stack.callback(processes.cancel, "the judging has ended")
            work = partial(judging.judge_in_process, processes)
        while window := tuple(islice(numbered, batches * size)):
            count = min(size, -(-len(window) // batches))  # share a short window among the workers
            starts = range(0, len(window), count)
            try:
                for reports in executor.map(work, [window[at : at + count] for at in starts]):
                    scope.check()
                    yield from reports
                    done += len(reports)
                    scope.progress("judging the snapshots", done / total if total else None)
            except BrokenExecutor as error:
                raise HostRoutingError(f"can't judge the snapshots: {error}") from error


@frozen
class _Judging:
    """The options for checking a snapshot.

    Args:
        config: the config with the expected CIDRs.
        max_mib: maximum file size in MiB.
        since: the folder with earlier snapshots, or None.
        shared: the file names without ``.json`` that several snapshots in different folders have.
    """

    config: Config
    max_mib: int
    since: str | os.PathLike[str] | None
    shared: frozenset[str]

    @property
    def seconds_max(self) -> float:
        """Return the maximum CPU time for a snapshot in a process on this machine."""
        return self.max_mib * _SECONDS_A_MIB

    def judge(self, batch: _Batch) -> list[JudgedHost]:
        """Return the judged host of each snapshot."""
        return [self.judge_snapshot(*each) for each in batch]

    def judge_snapshot(self, number: int, given: SnapshotSource) -> JudgedHost:
        """Return the host of a snapshot with its report and the changes since the earlier snapshot.

        If the source isn't a valid snapshot, the report says why.
        """
        try:
            if isinstance(given, Snapshot):
                snapshot = given
            elif isinstance(given, Mapping):
                snapshot = Snapshot.from_document(given)
            else:
                snapshot = self._load(given)
        except HostRoutingError as error:
            return self._unjudged(number, given, UnknownReason.NO_SNAPSHOT, _why(error, given))
        name = self._name_of(number, given, snapshot.host)
        snapshot = attrs.evolve(snapshot, host=snapshot.host or name)
        host = Host.recorded(snapshot)
        report, planned = check_and_plan(self.config, host, CancelScope())
        if planned is not None:
            report = with_next_start(report, planned, self.config)
        report = _with_removals(report, planned, self.config, host)
        has_printed = bool(printed_on(host))
        judged = JudgedHost(name, report, taken=snapshot.time, has_printed=has_printed)
        if self.since is None:
            return judged
        earlier = Path(self.since) / f"{snapshot.host}.json"
        if isinstance(given, (str, os.PathLike)):
            earlier = Path(self.since) / Path(given).name
        if not os.path.lexists(earlier):
            why = f"there is no earlier snapshot in {os.fspath(self.since)}"
            return attrs.evolve(judged, since=_uncompared(snapshot, why), is_new=True)
        try:
            before = self._load(earlier)
        except HostRoutingError as error:
            why = f"the earlier snapshot in {earlier.parent}: {_why(error, earlier)}"
            return attrs.evolve(judged, since=_uncompared(snapshot, why))
        # Groups need only the changes that explain a difference. Passing a large host's other
        # changes between processes would take long.
        since = attrs.evolve(diff(before, snapshot, self.config), others=())
        return attrs.evolve(judged, since=since, is_of_another=before.host != snapshot.host)

    def _load(self, path: str | os.PathLike[str]) -> Snapshot:
        return Snapshot.load(path, bytes_max=self.max_mib << 20)

    def _unjudged(
        self,
        number: int,
        given: SnapshotSource,
        kind: UnknownReason,
        why: str,
    ) -> JudgedHost:
        name = self._name_of(number, given)
        report = unjudged(self.config.route_overlap, kind, why)
        return JudgedHost(name, attrs.evolve(report, host=name, time=None))

    def _name_of(self, number: int, given: SnapshotSource, host: str | None = None) -> str:
        """Return a host's name for lists: the file's name, the host's own name, or a number."""
        if not isinstance(given, (str, os.PathLike)):
            return host or f"snapshot {number}"
        name = _stem(given)
        return f"{_in_one_line(str(Path(given).parent))}/{name}" if name in self.shared else name

    def judge_in_process(self, scope: CancelScope, batch: _Batch) -> list[JudgedHost]:
        """Return the judged host of each snapshot, from a process with time and memory limits.

        If the process ends during a check, another process checks the snapshots that follow.
        """
        reports: list[JudgedHost] = []
        while left := batch[len(reports) :]:
            ended = scope.run(
                [sys.executable, "-c", _PROGRAM, *sys.path],
                input=_packed((self, left)),
                check=False,
            )
            *lines, _ = ended.stdout.split("\n")
            reports += map(_unpacked, lines)
            if len(lines) < len(left):
                why = f"judging it takes more than {self.seconds_max:g} s of processor time"
                if ended.returncode != -signal.SIGPROF:
                    last = ended.stderr.strip().rpartition("\n")[2]
                    said = last or f"it returned {ended.returncode}"
                    why = f"the process that judged it died, for example for lack of memory: {said}"
                reports.append(self._unjudged(*left[len(lines)], UnknownReason.CHECK_FAILED, why))
        return reports


def _with_removals(
    report: OverlapReport,
    planned: PlannedHost | None,
    config: Config,
    host: Host,
) -> OverlapReport:
    """Return the report, with a caution on the routes that ``apply`` would remove."""
    if config.is_as_installed or report.verdict is Verdict.UNKNOWN:
        return report
    scope = CancelScope()
    try:
        if not host.our_routes():
            return report
        if planned is None:
            planned = rehearse(config, host, scope).planned
        return with_removals(report, planned, config, scope, "CONFIG", is_of_fleet=True)
    except RouteError:  # other lines say why apply would fail
        return report


def judge_stdin() -> None:
    """Judge a batch of snapshots in this process, with limits, and print a line for each host."""
    judging, batch = _unpacked(sys.stdin.read())
    # The limit includes the memory of the program itself.
    bytes_max = (judging.max_mib << 20) * _MEMORY_A_BYTE
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        bytes_max = min(bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_max, hard))
    for each in batch:
        # At the limit, SIGPROF ends this process.
        signal.setitimer(signal.ITIMER_PROF, judging.seconds_max)
        sys.stdout.write(f"{_packed(judging.judge_snapshot(*each))}\n")
        sys.stdout.flush()


def _packed(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301 - written by this program


def _uncompared(snapshot: Snapshot, why: str) -> DiffReport:
    return DiffReport(snapshot.host, None, snapshot.time, (), reason=why)


def _why(error: HostRoutingError, source: SnapshotSource) -> str:
    """Return an error's first problems without the file's path, because reports name the host."""
    problems = error.message.splitlines()
    if isinstance(error, ConfigError) and isinstance(source, (str, os.PathLike)):
        path = f"{os.fspath(source)}: "
        problems = [problem.removeprefix(path) for problem in problems]
    return "; ".join([shortened(problems, "; ", _SHOWN_PROBLEMS), *error.hint.splitlines()])


def _shared_names(snapshots: Iterable[SnapshotSource]) -> frozenset[str]:
    """Return the names that several files of a list have; none for an iterator, read only once."""
    if not isinstance(snapshots, Sequence):
        return frozenset()
    first: dict[str, str | os.PathLike[str]] = {}
    shared: set[str] = set()
    for path in snapshots:
        if isinstance(path, (str, os.PathLike)):
            other = first.setdefault(_stem(path), path)
            if other is not path and os.fspath(other) != os.fspath(path):
                shared.add(_stem(path))
    return frozenset(shared)


def _stem(path: str | os.PathLike[str]) -> str:
    """Return a file's name without ``.json``."""
    return _in_one_line(Path(path).name.removesuffix(".json"))


def _in_one_line(name: str) -> str:
    # A crafted file name could inject lines into a report.
    return "?".join(name.splitlines())
