"""Tests that public names exist, are listed in docs/reference/api.md, and that four type checkers
accept their use.

./run lint checks all other code with mypy and pyright.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import contextlib
import inspect
import ipaddress
import multiprocessing
import os
import pickle
import pydoc
import re
import subprocess
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
from node import shadowed_kernel
from public_surface import FILE, MODULES, surface
from wanted import MACHINE, SHADOWED, config

import hostrouting
import hostrouting.backend
import hostrouting.report
import hostrouting.tasks
import phases
from hostrouting import OverlapMode, OverlapReport, Verdict
from hostrouting.backend import (
    AddressLabel,
    Family,
    NetlinkBackend,
    NetlinkBackend6,
    RouteBackend,
    RouteFailure,
    Rule,
    RuleFailure,
    Selection,
    Systemctl,
)
from hostrouting.kernel.selection import DEFAULT_ROUTES, except_plain
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.lookups import Lookup
from hostrouting.model.routes import Route
from hostrouting.report import (
    Change,
    Changes,
    ChangesObserver,
    ExaminedHost,
    FamilyVerdict,
    JudgedHost,
    LeftOut,
    Obstacle,
    OverdueRun,
    Replacement,
    Unfixable,
)
from hostrouting.testing import FakeSystemd

ROOT = Path(__file__).parent.parent
NAMES: set[str] = {*vars(hostrouting)["__all__"]}
PUBLIC: set[str] = {name for module in MODULES for name in module.__all__}


def test_the_surface_is_the_one_in_the_repository() -> None:
    """So a review sees each change of it."""
    stale = f"{FILE.name} is stale: ./run python tests/support/public_surface.py"
    assert surface().splitlines() == FILE.read_text().splitlines(), stale


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_exists(module: ModuleType) -> None:
    assert len({*module.__all__}) == len(module.__all__)
    assert {*module.__all__} <= {*dir(module)}
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize(
    "module", [hostrouting, hostrouting.tasks], ids=lambda module: module.__name__
)
def test_type_checkers_find_each_name_in_the_same_module(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    told = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "phases"
        for alias in node.names
        if alias.asname is not None
    }
    assert set(told) == set(module.__all__)
    for name, home in told.items():
        assert getattr(module, name) is pydoc.locate(home)


def test_the_docstring_lists_every_name_by_use() -> None:
    assert {*re.findall(r"\w+", hostrouting.__doc__ or "")} >= NAMES


def test_the_api_page_begins_with_every_public_name() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    listed = re.findall(
        r"^\.\. auto(?:class|function|exception):: (\w+)(?:\(.*\))?$", page, re.MULTILINE
    )
    assert sorted(listed) == sorted(NAMES)
    modules = {*re.findall(r"^\.\. automodule:: ([\w.]+)$", page, re.MULTILINE)}
    assert modules == {module.__name__ for module in MODULES} - {"hostrouting"}
    assert page.rindex(f":: {listed[-1]}\n") < page.index("automodule")


@pytest.mark.parametrize("module", MODULES[1:], ids=lambda module: module.__name__)
def test_the_api_page_lists_every_public_name(module: ModuleType) -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    listed = {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)}
    assert {*module.__all__} <= listed


# Programs never name these: they get the value from us, or leave out the argument.
UNNAMED = {"NexthopObject", "Silence", "Tell"}
OF_OTHERS = {
    *("CalledProcessError", "CancelledError", "CompletedProcess", "Event", "Executor"),
    *("HasFileno", "Logger", "Path", "PathLike", "SearchStrategy", "TestCase"),
    *(
        name
        for module in (builtins, collections.abc, contextlib, ipaddress)
        for name in dir(module)
    ),
    *dir(typing),
}


def test_annotations_name_public_types() -> None:
    """So a program can annotate its own backend, kernel, task or observer."""
    named: set[str] = set()
    for line in FILE.read_text().splitlines():
        if not re.match(r"(?:class )?(?:phases|hostrouting\.(?:backend|testing))\.", line):
            continue
        if " = " not in line.partition("(")[0] and not line.startswith("class "):
            annotations = re.sub(
                r"= \S+|'.*?'|<.*?>", "", line.partition("(" if "(" in line else ": ")[2]
            )
            named |= {*re.findall(r"\b[A-Z]\w*[a-z]\w*", annotations)}
    assert named <= PUBLIC | OF_OTHERS | UNNAMED


def test_docstrings_name_public_errors() -> None:
    """So a program can catch them."""
    named: set[str] = set()
    for module in MODULES:
        for value in (getattr(module, name) for name in module.__all__):
            members = [getattr(value, name, None) for name in dir(value) if name[0] != "_"]
            texts = [inspect.getdoc(each) or "" for each in (value, *members)]
            named |= {*re.findall(r"\b\w+Error\b", "\n".join(texts))}
    assert named <= PUBLIC | OF_OTHERS


def test_the_api_page_says_what_a_backend_returns() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    for name in (name for name in dir(RouteBackend) if name[0] != "_" and name != "family"):
        returned = inspect.signature(getattr(RouteBackend, name)).return_annotation
        assert f"| `{name}` | `{returned}`" in page


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "phases",
            "def phase(): ...",
            "ImportError: the package phases is not hostrouting's.*pip uninstall phases.*",
        ),
        (
            "attrs",
            "raise ModuleNotFoundError('no attrs', name='attrs')",
            "ModuleNotFoundError: no attrs.*",
        ),
    ],
)
def test_only_another_distributions_phases_is_named(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """Python ends with one line about it, where a module of this name comes first on the path."""
    (tmp_path / f"{name}.py").write_text(f"{text}\n")
    command, env = (
        [sys.executable, "-c", "from hostrouting import Config"],
        {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    done = subprocess.run(
        command, env=os.environ | env, cwd=tmp_path, capture_output=True, text=True
    )
    assert re.fullmatch(said, done.stderr.splitlines()[-1])


def host_below(root: Path) -> hostrouting.Host:
    layout = hostrouting.Layout(root)
    layout.units.mkdir(parents=True)
    return hostrouting.Host(shadowed_kernel(), FakeSystemd(layout, running=[MACHINE]), layout)


def results(host: hostrouting.Host) -> Iterator[object]:
    """Yield what tasks and functions return, and what a backend does."""
    overlapping = config(cidrs=["172.16.0.0/16", "fd00::/8"], mode="WARN")
    rule = {"to": "10.244.0.0/16", "priority": 5000}
    installed = config(SHADOWED, rules=[rule], keep=["ib0"], watch={"enabled": True})
    other = config({"destination": SHADOWED, "dev": "ib0"}, keep=["ib*", "eth7"], mode="WARN")
    yield hostrouting.check(overlapping, host=host)
    yield hostrouting.plan(installed, host=host)
    yield installed
    yield (before := hostrouting.snapshot(host=host))
    yield phases.run(hostrouting.Configure(installed, host=host))
    yield phases.run(hostrouting.ConfigureWatch(config(), host=host))
    yield hostrouting.plan(other, host=host)
    yield (after := hostrouting.snapshot(host=host))
    yield hostrouting.diff(before, after, installed)
    yield hostrouting.judge([before, after], overlapping)
    yield hostrouting.explain("172.16.1.9", installed, host=host)
    yield hostrouting.examine(host=host)
    yield host.routes.facts()
    yield [*host.routes.entries()]
    yield host.routes.lookup([IPv4Address("172.16.1.9")])


DESTINATION = IPv4Network("10.0.0.0/8")
ROUTE = Route(DESTINATION)
REPORT = OverlapReport(Verdict.OVERLAP, OverlapMode.STRICT, None, "node-7")
OTHERS: list[object] = [
    hostrouting.Layout("/srv"),
    Lookup.of_template(IPv4Address("10.0.0.1"), ROUTE, numbers(DESTINATION), Route),
    AddressLabel(IPv6Network("::/0"), 1),
    RouteFailure(ROUTE, 1, "refused"),
    RuleFailure(Rule(5000), 1, "refused"),
    Selection(),
    DEFAULT_ROUTES,
    except_plain(("eth0",)),
    except_plain({"eth0"}, inside=((0, 1),), mtus={"eth0": 1500}),
    FamilyVerdict(Family.IPV4, Verdict.OK, ("eth0",), None),
    JudgedHost("node-7", REPORT),
    Replacement(ROUTE, ROUTE),
    LeftOut("ib0", "it has no address"),
    Unfixable((DESTINATION,), ("ib0",), Obstacle("another program's rule decides", Rule(5000))),
]


def parts(value: object) -> Iterator[object]:
    """Yield a value, and the values that it contains."""
    yield value
    inside: Iterable[object] = ()
    kind: type[Any] = type(value)
    if attrs.has(kind):
        names = [field.name for field in attrs.fields(kind)]
        inside = [getattr(value, name) for name in names if hasattr(value, name)]
    elif isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    for each in inside:
        yield from parts(each)


def test_all_values_can_be_sent_to_another_process(tmp_path: Path) -> None:
    sent = {type(part) for value in OTHERS for part in parts(value)}
    for value in (*results(host_below(tmp_path)), *OTHERS):
        again = pickle.loads(pickle.dumps(value))
        assert (repr(again), again) == (repr(value), value)
        sent |= {type(part) for part in parts(value)}
    modules = (hostrouting.report, hostrouting.backend)
    public = [getattr(module, name) for module in modules for name in module.__all__]
    values = {each for each in public if inspect.isclass(each) and attrs.has(each)}
    assert values - sent == {ChangesObserver, ExaminedHost, Systemctl}


CLASSES = [getattr(module, name) for module in MODULES for name in module.__all__]
ARGUMENTS: dict[type, tuple[object, ...]] = {
    hostrouting.ConfigError: ([("a", "b")],),
    hostrouting.RouteOverlapError: ("10.0.0.0/8 fails", REPORT),
    phases.TimedOut: (2.5,),
    OverdueRun: (2.5,),
}


@pytest.mark.parametrize(
    "error",
    [each for each in CLASSES if inspect.isclass(each) and issubclass(each, BaseException)],
)
def test_an_error_can_be_sent_to_another_process(error: type[BaseException]) -> None:
    raised = error(*ARGUMENTS.get(error, ("can't",)))
    vars(raised).update(hint="try again", changes=Changes(units=(Change("a.service", "started"),)))
    again = pickle.loads(pickle.dumps(raised))
    assert (type(again), str(again), vars(again)) == (error, str(raised), vars(raised))


_SNAPSHOT = hostrouting.Snapshot((), (), (), ())
_CONFIG = hostrouting.Config()
OBJECTS = (
    hostrouting.Host(),
    hostrouting.Host(NetlinkBackend(), Systemctl(), hostrouting.Layout("/srv"), NetlinkBackend6()),
    hostrouting.Host.recorded(_SNAPSHOT),
    hostrouting.Layout("/srv"),
    NetlinkBackend(),
    Systemctl("/srv"),
    hostrouting.Configure(_CONFIG),
    hostrouting.ConfigureStaticRoutes(_CONFIG),
    hostrouting.CheckRouteOverlap(_CONFIG),
    hostrouting.ConfigureWatch(_CONFIG),
    hostrouting.RemoveHostRouting(),
    hostrouting.tasks.InstallRoutes(_CONFIG),
)


def _texts_of(objects: Sequence[object]) -> list[str]:
    return [repr(each) for each in objects]


def test_what_processes_may_share_can_be_sent_to_one() -> None:
    """The page about dependencies says so of tasks, hosts, layouts and backends."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        assert executor.submit(_texts_of, OBJECTS).result() == _texts_of(OBJECTS)


@pytest.mark.parametrize("host", [hostrouting.Host(), hostrouting.Host.recorded(_SNAPSHOT)])
def test_a_sent_host_has_the_same_backends(host: hostrouting.Host) -> None:
    again = pickle.loads(pickle.dumps(host))
    assert [*map(type, again.backends([Family.IPV4]))] == [*map(type, host.backends([Family.IPV4]))]


# --- type checkers --------------------------------------------------------------------------------


# The text around the README's code blocks.
BEFORE = """\
# pyright: strict, reportUnusedImport=false, reportDuplicateImport=false
from hostrouting import Config, Configure, ConfigureReport, OverlapReport
from typing_extensions import assert_type

config = Config()

"""
AFTER = (
    "\n\nassert_type(phases.run(Configure(config)), ConfigureReport)\n"
    "assert_type(check(config), OverlapReport)\n"
)

CHECKERS = {
    "mypy": ["mypy", "--python-executable", sys.executable],
    "pyright": ["pyright", "--pythonpath", sys.executable],
    "ty": ["ty", "check", "--python", sys.prefix, "--no-progress"],
    "pyrefly": [
        *("pyrefly", "check", "--preset=default", "--search-path=examples"),
        *("--python-interpreter-path", sys.executable),
    ],
}


def check(checker: str, *files: Path) -> subprocess.CompletedProcess[str]:
    program, *options = CHECKERS[checker]
    command = [str(Path(sys.executable).parent / program), *options, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture
def readme(tmp_path: Path) -> list[Path]:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks
    files = {tmp_path / f"block_{number}.py": block for number, block in enumerate(blocks)}
    for file, block in files.items():
        file.write_text(BEFORE + block + AFTER)
    return list(files)


@pytest.mark.ci
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_readmes_python_is_clean(checker: str, readme: list[Path]) -> None:
    done = check(checker, *readme)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.ci
@pytest.mark.parametrize("checker", ["ty", "pyrefly"])
def test_the_examples_and_users_code_are_clean(checker: str) -> None:
    done = check(checker, *(ROOT / "examples").glob("*.py"), ROOT / "tests/typing/api.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.ci
@pytest.mark.parametrize("checker", CHECKERS)
def test_an_error_is_reported(checker: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        f"{BEFORE}phases.run({{'routes': []}})\nassert_type(phases.run(Configure(config)), int)\n"
    )
    done = check(checker, wrong)
    assert done.returncode == 1
    assert done.stdout.count("wrong.py:") + done.stderr.count("wrong.py:") >= 2
