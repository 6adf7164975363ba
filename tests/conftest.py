"""Network namespaces for the tests, guards that protect the host, and Hypothesis profiles.

The whole test process moves into a private network namespace before any test is collected, and each
test that uses the ``kernel`` fixture moves into a new one. This prevents tests from changing the
host's routes by mistake, even without the ``kernel`` mark. It has to happen early: without root it
requires a user namespace, which only a single-threaded process can enter, and pytest-xdist starts
threads later. pytest-xdist workers start inside that user namespace and create their own network
namespaces as its root.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from boot import keeper, trees
from building import build, filled_once
from hypothesis import Phase, settings
from needs import NO_LINKS
from nightly import IS_NIGHTLY, REQUIRED, by_day, refuse
from node import build_node, like_linux, network_namespace, on_linux, refuse_host
from scripts import AWKS, Sandbox, awk_or_skip, awks_for, end_what_is_left

from hostrouting import cli
from hostrouting.azure.probe.node import LinuxProbeNode
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.boot.host import Host
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.kernel.namespace import NamespaceError, NamespaceKernel, enter_namespace
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.kernel.rtnetlink.messages import RTM_GETLINK, stretches
from hostrouting.testing import FakeKernel

# HOSTROUTING_TEST_HOST_NAMESPACE identifies the host's network namespace and is inherited by
# workers.
ROOT = Path(__file__).parents[1]
_HOST = "HOSTROUTING_TEST_HOST_NAMESPACE"

settings.register_profile(
    "default",
    max_examples=8,
    derandomize=True,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    print_blob=True,
)
settings.register_profile(
    "nightly",
    max_examples=5000,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    print_blob=True,
)
# Shrinking a failure uses up the memory of User-Mode Linux.
settings.register_profile(
    "kernels", settings.get_profile("default"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("nightly" if IS_NIGHTLY else "default")

# Workers and hundreds of programs load the same modules, so compile these once, outside the source
# tree.
sys.pycache_prefix = os.environ.setdefault(
    "PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / ".pytest_cache/pycache")
)
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_MEMORY, _MEMORY_BYTES = "/dev/shm", 1 << 30

_HYPOTHESIS_WARNING = "hypothesis.errors.HypothesisWarning"

# A test makes many small values, few of them in cycles.
_COLLECT_AFTER = 20_000, 20, 20

_refused: str | None = None


# --- a hard time limit ----------------------------------------------------------------------------
# pytest-timeout raises an exception in the main thread. If that doesn't stop the test, its process
# is killed after another quarter of the time, and pytest-xdist reports the test and replaces the
# worker.

_SECONDS = 120.0
_LATER = 1.25
_EXIT_SECONDS = 120.0

_limit = -1


def _set_limit(seconds: float | None) -> None:
    os.write(_limit, b"%f\n" % seconds if seconds else b"\n")


def _limit_of(item: pytest.Item, *, has_fixtures: bool) -> float:
    """Return the limit in seconds of a test, with or without its fixtures."""
    marker = item.get_closest_marker("timeout")
    if marker is not None and marker.args:
        # If it covers only the function, the first worker may have to build a tree while the others
        # wait for it.
        fixtures = 2 * trees.BUILD_SECONDS if has_fixtures and marker.kwargs.get("func_only") else 0
        return float(marker.args[0]) * _LATER + fixtures
    return float(item.config.option.timeout) * _LATER


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    _set_limit(_limit_of(item, has_fixtures=True))
    try:
        return (yield)
    finally:
        # Another test sets its own limit. A worker without one may wait for the others.
        if nextitem is None:
            _set_limit(None)


def pytest_runtest_call(item: pytest.Item) -> None:
    limit = _limit_of(item, has_fixtures=False)
    if limit != _limit_of(item, has_fixtures=True):
        _set_limit(limit)


def pytest_unconfigure() -> None:
    _set_limit(_EXIT_SECONDS)


# --- the world of the tests -----------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads its option
def pytest_configure(config: pytest.Config) -> None:
    global _refused, _limit
    # pyproject.toml has neither, because the tests in examples/ need only pytest.
    if config.option.timeout is None:
        config.option.timeout = _SECONDS
    # From Python 3.14 on, gc.freeze() hides the references for which Hypothesis looks.
    unseen = "It looks like `register_random` was passed an object"
    config.addinivalue_line("filterwarnings", f"ignore:{unseen}:{_HYPOTHESIS_WARNING}")
    program = Path(__file__).parent / "support/limit.py"
    read_end, _limit = os.pipe()
    argv = [sys.executable, "-I", str(program), str(os.getpid())]
    # Popen would warn at exit that the program is still running, because it outlives this process
    # for a short time.
    os.posix_spawn(
        argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0)], setsid=True
    )
    os.close(read_end)
    os.environ.setdefault(_HOST, network_namespace())
    if "TMPDIR" not in os.environ and _has_room_for_programs(_MEMORY):
        # The tests sync thousands of files, which is slow on a disk.
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY
    # A background job of a shell ignores SIGINT and SIGQUIT, and nohup(1) SIGHUP. Child processes
    # inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    try:
        enter_namespace()
    except NamespaceError as error:
        _refused = str(error)


_LONGEST = "test_machines.py", "test_a_watcher_that_keeps_failing_waits"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _spread_boots(items)
    # The worker that gets the longest tests begins with them. Meanwhile, the others steal the rest
    # of its tests.
    items.sort(
        key=lambda item: next(
            (at for at, name in enumerate(_LONGEST) if name in item.nodeid), len(_LONGEST)
        )
    )
    if "ci" in REQUIRED:
        return
    left = [item for item in items if item.get_closest_marker("ci") is not None]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


def _spread_boots(items: list[pytest.Item]) -> None:
    """Spread the tests that boot evenly over the others, which compute while these wait.

    pytest-xdist gives each worker a part of the list.
    """
    boots = [item for item in items if item.get_closest_marker("boot") is not None]
    others = [item for item in items if item.get_closest_marker("boot") is None]
    places = {
        item: number / len(group) for group in (boots, others) for number, item in enumerate(group)
    }
    items.sort(key=places.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Collected tests live until the end. Scanning them in every garbage collection would take as
    # long as many tests.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(*_COLLECT_AFTER)


def _has_room_for_programs(folder: str) -> bool:
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > _MEMORY_BYTES


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernel") is not None and _refused is not None:
        refuse("kernel", _refused)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure if skips aren't allowed, unless only another kernel would help."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and "ci" in REQUIRED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if NO_LINKS in str(reason):
            return report
        report.outcome, report.longrepr = "failed", f"HOSTROUTING_REQUIRE names ci, but {reason}"
    return report


@pytest.fixture
def kernel() -> NamespaceKernel:
    """Return a real kernel in a new network namespace with only ``lo``."""
    return on_linux()


@pytest.fixture(params=[pytest.param("linux", marks=pytest.mark.kernel), "memory"])
def each_kernel(request: pytest.FixtureRequest) -> NamespaceKernel | FakeKernel:
    """Return a real kernel in a new network namespace or an in-memory kernel; the test runs with
    each.
    """
    return on_linux() if request.param == "linux" else like_linux()


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    """Return a real kernel on which ``build_node`` has created a node."""
    return build_node(kernel)


@pytest.fixture(params=range(by_day(1, by_night=len(AWKS))))
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    """Return a sandbox for boot scripts, with each awk in nightly runs, otherwise with one."""
    return Sandbox(tmp_path, awk_or_skip(awks_for(request.function.__name__)[request.param]))


@pytest.fixture
def run(host: Host, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command on ``host`` and returns its exit code, stdout and
    stderr.
    """

    def call(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words], host=host)
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def nft() -> None:
    """Require nft(8)."""
    _need("nft")


@pytest.fixture
def ebtables() -> None:
    """Require the nftables variant of ebtables."""
    _need("ebtables-nft", "ebtables-nft-save", "ebtables-nft-restore")


def _need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program, path=SEARCH_PATH) is None]
    if missing:
        refuse("kernel", f"{missing[0]} isn't installed")


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with this checkout's release files, which are built once for all
    workers.
    """
    missing = [
        f"{tool} isn't installed"
        for tool in ("dpkg-deb", "git", "lintian")
        if shutil.which(tool) is None
    ]
    obstacle = missing[0] if missing else keeper.obstacle()
    if obstacle:
        refuse("ci", obstacle)
    # The tests have no network access, so dependencies are downloaded in the outer namespace.
    outside = ("nsenter", f"--net={trees.outer_network()}")
    return filled_once(tmp_path_factory, "release", lambda folder: build(ROOT, folder, *outside))


@pytest.fixture
def as_ordinary_user() -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager that drops root privileges: the kernel then refuses to open files
    and change routes.
    """

    @contextmanager
    def give_up() -> Iterator[None]:
        before = os.geteuid()
        if before == 0:
            try:
                os.seteuid(65534)
            except OSError:
                pytest.skip("root of a user namespace with one user can't become another")
        try:
            yield
        finally:
            os.seteuid(before)

    return give_up


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    end_what_is_left()


@pytest.fixture(autouse=True, scope="session")
def _settings_of_no_user() -> Iterator[None]:
    """Replace what a user or a CI may have set about terminals and about the modes of new files."""
    before = os.umask(0o022)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", "80")
        for name in ("FORCE_COLOR", "NO_COLOR"):
            monkeypatch.delenv(name, raising=False)
        yield
    os.umask(before)


# --- the host stays unchanged ---------------------------------------------------------------------
# There is a guard for each kind of access to the host.


@pytest.fixture(autouse=True, scope="session")
def _host_is_untouched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        _guard_netlink(monkeypatch)
        _guard_rules(monkeypatch)
        _guard_files(monkeypatch)
        yield


def _guard_netlink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise if a netlink message is about to change anything in the host's network namespace."""
    send = Conversation._send

    def guarded_send(self: Conversation, messages: bytes) -> None:
        # Message types come in groups of four: RTM_NEW*, RTM_DEL*, RTM_GET* and RTM_SET*.
        if any(stretch.kind % 4 != RTM_GETLINK % 4 for stretch in stretches(messages)):
            refuse_host()
        send(self, messages)

    monkeypatch.setattr(Conversation, "_send", guarded_send)


def _guard_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise if nft, ebtables or ip is about to change rules or neighbours in the host's network
    namespace.
    """

    def guarded(change: Callable[..., None]) -> Callable[..., None]:
        def checked(self: Any, *what: Any) -> None:
            refuse_host()
            change(self, *what)

        return checked

    for node, changes in (
        (LinuxProbeNode, ("load", "add_host_route", "delete_host_route")),
        (LinuxBridgeNode, ("remove_rules", "remove_neighbours")),
    ):
        for name in changes:
            monkeypatch.setattr(node, name, guarded(getattr(node, name)))


def _guard_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise if a ``Host`` uses this machine's files, because a network namespace protects only the
    network.
    """
    build = Host.__init__

    @functools.wraps(build)
    def guarded(self: Host, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        if self.layout.is_this_host:
            raise AssertionError(
                "a test was about to use this machine's files; pass a temporary Layout to Host"
            )

    monkeypatch.setattr(Host, "__init__", guarded)
