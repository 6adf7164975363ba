"""Fixtures that boot nspawn machines.

If a requirement is missing, the tests are skipped or fail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest
from building import filled_once
from nightly import IS_NIGHTLY, by_day, refuse

from boot import keeper, trees
from boot.rig import Machine, MachineError, compile_python

T = TypeVar("T")

_MACHINES = pytest.StashKey[list[Machine]]()
_TEST_SECONDS = by_day(600, by_night=3600)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    if left_out := [] if IS_NIGHTLY else [item for item in here if _is_for_the_night(item)]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in here:
        item.add_marker(pytest.mark.boot)
        # The timeout excludes fixtures, because the first one may have to build a tree.
        item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


def _is_for_the_night(item: pytest.Item) -> bool:
    """Return whether a test runs only at night.

    By day, each test runs on one release, selected by its name.
    """
    if not isinstance(item, pytest.Function) or "suite" not in item.fixturenames:
        return False
    if item.get_closest_marker("each_release") is not None:
        return False
    suite = item.callspec.params["suite"]
    name = item.name.replace(str(suite), "")
    return suite != list(trees.SUITES)[crc32(name.encode()) % len(trees.SUITES)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        machines: list[Machine] = item.stash.get(_MACHINES, [])
        for number, machine in enumerate(machines, 1):
            try:
                report.sections.append(
                    (f"journal of machine {number}", machine.journal()[-20_000:])
                )
            except MachineError as error:
                report.sections.append((f"journal of machine {number}", str(error)))
    return report


@pytest.fixture(scope="session")
def _bootable() -> None:
    if obstacle := keeper.obstacle():
        refuse("boot", obstacle)


@pytest.fixture(scope="session", params=list(trees.SUITES))
def suite(request: pytest.FixtureRequest) -> str:
    """Return a Debian release. At night, every machine test runs once per release."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def by_turns(suite: str) -> Callable[[Sequence[T]], Sequence[T]]:
    """Return a function that selects the cases for a release: all of them in nightly runs,
    otherwise an equal share.
    """
    releases = list(trees.SUITES)
    return lambda cases: cases if IS_NIGHTLY else cases[releases.index(suite) :: len(releases)]


@pytest.fixture(scope="session")
def tree(_bootable: None, suite: str) -> Path:
    """Return the tree for the release."""
    try:
        return trees.find_or_build(suite)
    except trees.CannotBuildError as error:
        refuse("boot", str(error))


@pytest.fixture(scope="session")
def compiled(tree: Path, suite: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with bytecode for the tree, shared by all workers."""
    return filled_once(
        tmp_path_factory, f"compiled-{suite}", lambda folder: compile_python(tree, folder)
    )


@pytest.fixture
def new_machine(
    tree: Path, compiled: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Machine]]:
    """Return a factory for machines that are powered off and have no network.

    They end with the test.
    """
    made: list[Machine] = request.node.stash.setdefault(_MACHINES, [])
    with ExitStack() as stack:

        def make() -> Machine:
            machine = stack.enter_context(Machine(tree, compiled))
            made.append(machine)
            return machine

        yield make


@pytest.fixture
def machine(new_machine: Callable[[], Machine]) -> Machine:
    """Return a machine that is powered off and has no network."""
    return new_machine()


@pytest.fixture
def node(machine: Machine) -> Machine:
    """Return a powered-off machine with a default route through eth0, and with ib0, which shadows
    172.16.0.0/16.
    """
    machine.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1", metric=100)
    machine.add_nic("ib0", "172.16.0.10/16")
    return machine
