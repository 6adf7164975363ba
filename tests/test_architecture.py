"""The house: a room imports only rooms below it, by their open doors, and nothing goes in circles.

Every import counts: those inside functions, and those that only type checkers read.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What each room may import; what it imports itself must be among it too.
BELOW = {
    "model": set[str](),
    "config": {"model"},
    "kernel": {"model", "config"},
    "boot": {"model", "config", "kernel"},
    "routes": {"model", "config", "kernel"},
    "overlap": {"model", "config", "kernel", "boot", "routes"},
    "tasks": {"model", "config", "kernel", "boot", "routes", "overlap"},
    "watch": {"model", "config", "kernel", "boot", "routes", "overlap"},
    "testing": {"model", "config", "kernel", "boot"},
    "doctor": {"model", "config", "kernel", "boot", "routes", "overlap", "watch"},
    "azure": {"model", "config", "kernel", "boot", "routes", "overlap", "watch", "doctor"},
    "cli": {"model", "config", "kernel", "boot", "routes", "overlap", "tasks", "watch", "doctor"},
}
# Its own commands are all that knows the plug-in.
KNOW_AZURE = ("hostrouting.azure.", "hostrouting.cli.azure.")

PURE = (
    "hostrouting.config.schema",
    "hostrouting.config.overlap",
    "hostrouting.config.routing",
    "hostrouting.kernel.fib",
    "hostrouting.kernel.nexthops",
    "hostrouting.kernel.rules",
    "hostrouting.kernel.snapshot",
    "hostrouting.boot.gate",
    "hostrouting.boot.render",
    "hostrouting.routes.formats",
    "hostrouting.routes.resolve",
    "hostrouting.overlap.cover",
    "hostrouting.overlap.coverage",
    "hostrouting.overlap.findings",
    "hostrouting.overlap.fix",
    "hostrouting.overlap.judge",
    "hostrouting.overlap.wording",
    "hostrouting.azure.config",
    "hostrouting.azure.probe.ruleset",
    "hostrouting.azure.vnet.parse",
    "hostrouting.azure.vnet.plan",
    "hostrouting.watch.events",
)
IMPURE_MODULES = {"os", "subprocess", "socket", "time", "logging", "datetime", "pathlib", "random"}


# What a room may take from the top: the version, and what makes public names.
TOP_NAMES = {
    "cli": ("hostrouting", "hostrouting.__version__"),
}
BY_STRING = {"import_module", "__import__"}


def names_in(source: str) -> set[str]:
    """Every name and attribute that a module uses."""
    nodes = nodes_of(source)
    imported = {name.rpartition(".")[2] for name in imports(source)}
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    return imported | named | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def room_of(module: str) -> str:
    """The room that a module of ours is in; empty: it stands before the rooms."""
    name = module.split(".")[1] if "." in module else ""
    return name if name in BELOW else ""


@cache
def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


@cache
def imports(source: str, *, for_types: bool = True) -> set[str]:
    """Every name that a module imports anywhere, as ``package.module`` and ``package.module.name``."""
    names: set[str] = set()
    nodes = nodes_of(source)
    if not for_types:
        guarded = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        unread = {inner for node in guarded for each in node.body for inner in ast.walk(each)}
        nodes = [node for node in nodes if node not in unread]
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            assert node.module is not None
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def sources() -> dict[str, str]:
    """Every module of ours by its name, with its text."""
    paths = [path for package in ("hostrouting", "phases") for path in (ROOT / package).rglob("*.py")]
    return {module_name(path): path.read_text() for path in paths}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def doors() -> dict[str, set[str]]:
    """For each room that opens some of its modules to others, which."""
    opened = {}
    for room in BELOW:
        for node in ast.parse(sources()[f"hostrouting.{room}"]).body:
            if ast.unparse(node).startswith("__all__ = [") and isinstance(node, ast.Assign):
                opened[room] = set(ast.literal_eval(node.value))
    return {room: names for room, names in opened.items() if f"hostrouting.{room}.{min(names)}" in sources()}


def objections(module: str, source: str) -> list[str]:
    """What is wrong with the imports of a module."""
    found = [why for name in sorted(imports(source)) if (why := objection(module, name))]
    if module != "hostrouting._lazy" and (called := BY_STRING & names_in(source)):
        found.append(f"{' '.join(called)}: an import that no reader sees")
    return [f"{module} imports {why}" for why in found]


def objection(module: str, name: str) -> str:
    """What is wrong with a module's import of a name; empty: nothing."""
    room, other, package = room_of(module), room_of(name), module.partition(".")[0]
    if package == "phases":
        return f"{name}: the runner knows nothing of routes" if name.startswith("hostrouting") else ""
    if name.startswith("phases._"):
        return f"{name}, which phases doesn't open to others"
    if not name.startswith("hostrouting"):
        return ""
    if module == "hostrouting._lazy":
        return f"{name}: it stands below every room"
    if not room or other == room or (other == "azure" and f"{module}.".startswith(KNOW_AZURE)):
        return ""
    if not other:
        is_known = name in TOP_NAMES.get(room, ())
        return "" if is_known else f"{name}: what is named there is for users, and may lie above {room}"
    return why_not(room, other, name)


def why_not(room: str, other: str, name: str) -> str:
    """What is wrong with a room's import of a name of another one."""
    if other not in BELOW[room]:
        return f"{name}: {room} may import {' '.join(sorted(BELOW[room])) or 'no room'}"
    is_closed = other in doors() and name.split(".")[2:3] and name.split(".")[2] not in doors()[other]
    return f"{name}, which {other} doesn't open to others" if is_closed else ""


def test_a_module_imports_only_what_is_below_it_and_open() -> None:
    assert [why for module, source in sorted(sources().items()) for why in objections(module, source)] == []


@pytest.mark.parametrize("room", BELOW)
@pytest.mark.parametrize(
    "plant",
    ["{}", "def later():\n    {}", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}"],
    ids=["at the top", "in a function", "for types"],
)
def test_an_upward_import_planted_in_any_room_is_seen(room: str, plant: str) -> None:
    above = next((name for name in reversed(BELOW) if room in BELOW[name]), "")
    targets = [f"from hostrouting.{above} import x"] if above else ["import phases"]
    if room != "azure":
        targets.append("from hostrouting.azure import HostNetworking")
    for statement in targets:
        assert bool(objections(f"hostrouting.{room}.planted", plant.format(statement))) is (
            statement != "import phases"
        )


def test_an_import_of_a_closed_module_is_seen() -> None:
    assert objections("hostrouting.tasks.planted", "from hostrouting.overlap.fix import Remedies")
    assert objections("phases.planted", "import hostrouting")
    assert objections("hostrouting.tasks.planted", "from phases._scope import CancelScope")
    assert objections("hostrouting.cli.azure_like", "from hostrouting.azure.probe import plan")
    assert objections("hostrouting._lazy", "from hostrouting.cli.entry import main")


@pytest.mark.parametrize(
    "statement", ["from hostrouting import Configure", "import hostrouting", "from hostrouting import *"]
)
def test_a_public_name_taken_from_inside_is_seen(statement: str) -> None:
    """It may lie in any room, so it would be a way upwards."""
    assert objections(
        "hostrouting.model.planted", f"def later():\n    {statement}" if "*" not in statement else statement
    )


@pytest.mark.parametrize("call", ["importlib.import_module('x')", "import_module('x')", "__import__('x')"])
def test_an_import_by_string_is_seen(call: str) -> None:
    assert objections("hostrouting.model.planted", call)
    assert objections("phases.planted", call)


def test_the_plug_in_is_for_its_own_commands_alone() -> None:
    assert objections("hostrouting.cli.commands", "from hostrouting.azure import nodes")
    assert not objections("hostrouting.cli.azure.planted", "from hostrouting.azure import nodes")


def test_rooms_and_modules_go_in_no_circles() -> None:
    modules: dict[str, set[str]] = {}
    for module, source in sources().items():
        found = imports(source)
        # "from package import module" imports the module, and the package only for a name of its own.
        inner = {name for name in found if name in sources()}
        modules[module] = {
            name for name in inner - {module} if not any(other.startswith(f"{name}.") for other in inner)
        }
    modules.pop("hostrouting")  # what it offers is looked up when it is first used
    for graph in (BELOW, modules):
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(" -> ".join(error.args[1]))


def test_every_room_says_what_it_is_for_and_opens_nothing_that_nobody_uses() -> None:
    for room, names in doors().items():
        docstring = ast.get_docstring(ast.parse(sources()[f"hostrouting.{room}"]))
        assert docstring
        users = [source for module, source in sources().items() if room_of(module) != room]
        unused = {name for name in names if not any(f"hostrouting.{room}.{name}" in imports(text) for text in users)}
        offered = {name for name in unused if f'"{room}.{name}": "' in sources()["hostrouting"]}
        assert unused <= offered
    assert len(doors()) == 9


def test_who_opens_the_folder_sees_the_rooms() -> None:
    entries = {path.name for path in (ROOT / "hostrouting").iterdir() if path.name != "__pycache__"}
    assert entries == {*BELOW, "__init__.py", "__main__.py", "_lazy.py", "py.typed"}
    assert len(entries) <= 16


def test_a_pure_module_touches_nothing() -> None:
    for module in PURE:
        loaded = {name.partition(".")[0] for name in imports(sources()[module], for_types=False)}
        assert loaded & IMPURE_MODULES == set(), module


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        ("pyroute2", {"hostrouting.kernel.channel"}),
        ("rich", {"hostrouting.cli.drawn"}),
        ("shtab", {"hostrouting.cli.arguments"}),
        ("jinja2", {"hostrouting.cli.fleet"}),
        ("dask", set()),
        ("distributed", set()),
    ],
)
def test_only_one_module_imports_a_library(package: str, modules: set[str]) -> None:
    loaded = {name: imports(text, for_types=False) for name, text in sources().items()}
    users = {user for user, names in loaded.items() if any(name.partition(".")[0] == package for name in names)}
    assert users == modules


@pytest.mark.parametrize(
    ("statement", "unloaded"),
    [
        ("import hostrouting", ["pyroute2", "hostrouting.config", "attrs"]),
        ("from hostrouting import Config, StaticRoute", ["pyroute2", "asyncio", "hostrouting.tasks", "subprocess"]),
        ("from hostrouting import Configure, Host, NetlinkBackend", ["pyroute2", "asyncio"]),
        ("from hostrouting.testing import FakeKernel, FakeSystemd", ["pyroute2", "asyncio", "hypothesis"]),
        (
            "import hostrouting.cli",
            [
                "pyroute2",
                "rich",
                "shtab",
                "asyncio",
                "hostrouting.cli.demo",
                "logging",
                "subprocess",
                "pathlib",
                "json",
                "hostrouting.cli.azure",
                "hostrouting.config.routing",
            ],
        ),
        (
            "import hostrouting.cli.report, hostrouting.overlap.check, hostrouting.boot.host, hostrouting.kernel.netlink",
            [
                "hostrouting.config.routing",
                "hostrouting.kernel.fib",
                "hostrouting.overlap.fix",
                "shlex",
            ],
        ),
        ("from hostrouting import judge", ["pyroute2", "rich", "asyncio", "multiprocessing", "jinja2"]),
        (
            "import phases; phases.run",
            ["asyncio", "attrs", "concurrent.futures", "logging", "subprocess", "phases._process", "phases._compose"],
        ),
    ],
)
def test_a_name_loads_no_more_than_it_needs(statement: str, unloaded: list[str]) -> None:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    by_attrs = {"subprocess"} if sys.version_info < (3, 11) else set()
    assert not (set(unloaded) - by_attrs) & set(loaded.stdout.split())


def test_no_module_is_without_a_look_at_its_size() -> None:
    """Over 400 lines a module holds two subjects, as a rule."""
    assert {name for name, text in sources().items() if len(text.splitlines()) > 400} == set()
