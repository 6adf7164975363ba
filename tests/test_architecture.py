"""Tests that packages import only public modules from lower layers, and that there are no import
cycles.

They also cover imports inside functions and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from hostrouting.azure.probe.ruleset import FLUSH_DROP_INS, PROBE

ROOT = Path(__file__).parent.parent

# Layers, from bottom to top. Packages in the same layer don't import each other.
LAYERS = (
    ("phases", "model"),
    ("_lazy", "config"),
    ("kernel",),
    ("boot", "routes"),
    ("host_files",),
    ("overlap",),
    ("tasks", "watch"),
    ("doctor", "fleet"),
    ("azure",),
    ("cli", "testing"),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
# The top layer consists of hostrouting itself and its user-facing modules outside of packages.
TOP = len(LAYERS)
# In the command line, only the plug-in's commands may import the plug-in.
KNOWS_AZURE = "hostrouting.cli.azure."

# The routes port's two implementations, which share a package.
SIDES = {
    "fake": ("hostrouting.kernel.memory.", "hostrouting.kernel._memory."),
    "adapter": ("hostrouting.kernel.netlink.", "hostrouting.kernel.rtnetlink."),
}

# A module that promises this in its docstring imports none of the modules below, and calls none of
# the built-in functions.
PURE = "This module does no I/O."
STANDARD_IO = {"os", "subprocess", "socket", "time", "logging", "datetime", "pathlib", "random"}
OUR_IO = {
    "hostrouting.boot.files",
    "hostrouting.boot.host",
    "hostrouting.boot.locks",
    "hostrouting.boot.systemctl",
    "hostrouting.kernel.namespace",
    "hostrouting.kernel.netlink",
    "hostrouting.kernel.netlink6",
    "hostrouting.kernel.rtnetlink.conversation",
    "hostrouting.model.opening",
    "phases",
}
BUILT_IN_IO = {"open", "print", "input"}

BY_STRING = {"import_module", "__import__"}

# One line for each import inside a function, below its reason.
LATE_IMPORTS = Path(__file__).with_name("late_imports.txt")


def package_of(name: str) -> str | None:
    """Return a module's package, an empty string if it has none, or None if it isn't ours."""
    first, _, rest = name.partition(".")
    if first != "hostrouting":
        return first if first == "phases" else None
    package = rest.partition(".")[0]
    return package if package in LEVEL else ""


@cache
def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


@cache
def imports(source: str, *, for_types: bool = True) -> set[str]:
    """Return all names that a module imports, as ``package.module`` and ``package.module.name``."""
    names: set[str] = set()
    nodes = nodes_of(source)
    if not for_types:
        guarded = [
            node
            for node in nodes
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
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
    """Return the source of each of our modules, keyed by module name."""
    paths = [
        path for package in ("hostrouting", "phases") for path in (ROOT / package).rglob("*.py")
    ]
    return {module_name(path): path.read_text() for path in paths}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def objections(module: str, source: str) -> list[str]:
    """Return descriptions of a module's invalid imports."""
    found = [why for name in sorted(imports(source)) if (why := objection(module, name))]
    if module != "hostrouting._lazy":
        found += [f"by {name}, which no reader sees" for name in BY_STRING if name in source]
    return [f"{module} imports {why}" for why in found]


def objection(module: str, name: str) -> str:
    """Return why a module may not import a name, or an empty string if it may."""
    here, there = package_of(module), package_of(name)
    if {side_of(module), side_of(name)} == {"fake", "adapter"}:
        return f"{name}: fake and adapter are siblings"
    if there is None or here == there:
        return ""
    if LEVEL.get(there, TOP) >= LEVEL.get(here or "", TOP):
        return f"{name}, which isn't below {here}"
    if there == "azure" and not f"{module}.".startswith(KNOWS_AZURE):
        return f"{name}, which is a plug-in"
    inside = name[len(home(there)) :].split(".")
    is_private = there != "" and any(part.startswith("_") for part in inside)
    return f"{name}, which is private to {there}" if is_private else ""


def side_of(name: str) -> str:
    """Return the implementation of the port to which a module belongs, or an empty string."""
    return next((side for side, homes in SIDES.items() if f"{name}.".startswith(homes)), "")


def test_a_module_imports_only_public_modules_below_it() -> None:
    found = [
        why for module, source in sorted(sources().items()) for why in objections(module, source)
    ]
    assert not found, "\n".join(found)


def test_the_picture_of_the_layers_shows_the_same_rows() -> None:
    page = (ROOT / "docs/contributing/design.md").read_text()
    picture = page.partition("```text\n")[2].partition("```")[0]
    rows = [
        {name for name in re.findall(r"(?<=  )\w+(?=  )", line) if name in LEVEL}
        for line in picture.splitlines()
    ]
    layers = [{*layer} for layer in reversed(LAYERS)]
    assert [row for row in rows if row] == layers, "LAYERS and docs/contributing/design.md differ"


def home(package: str) -> str:
    return package if package == "phases" else f"hostrouting.{package}"


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("hostrouting.model.planted", "from hostrouting.config import x"),
        ("hostrouting.boot.planted", "from hostrouting.routes.plan import x"),
        ("hostrouting.tasks.planted", "def later():\n    from hostrouting.cli import x"),
        (
            "hostrouting.kernel.planted",
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
                "    from hostrouting.tasks import x"
            ),
        ),
        ("hostrouting.tasks.planted", "from hostrouting.overlap._fix import Fixes"),
        ("hostrouting.tasks.planted", "from phases._scope import CancelScope"),
        ("phases.planted", "import hostrouting"),
        ("hostrouting._lazy", "from hostrouting.cli.entry import main"),
        # A public name may come from any package, so this would hide an upward import.
        ("hostrouting.model.planted", "def later():\n    from hostrouting import Configure"),
        ("hostrouting.model.planted", "import hostrouting"),
        ("hostrouting.model.planted", "from hostrouting import *"),
        ("phases.planted", "importlib.import_module('x')"),
        ("phases.planted", "__import__('x')"),
        # Only the plug-in's commands may import the plug-in.
        ("hostrouting.cli.azure_like", "from hostrouting.azure.probe import plan"),
        ("hostrouting.cli.commands", "from hostrouting.azure import nodes"),
        # If the fake imported an adapter, both would share the same bugs, and comparing them would
        # be useless.
        (
            "hostrouting.kernel._memory.net",
            "from hostrouting.kernel.rtnetlink.route_messages import x",
        ),
        ("hostrouting.kernel.memory", "from hostrouting.kernel.netlink import x"),
        ("hostrouting.kernel.netlink", "from hostrouting.kernel.memory import x"),
    ],
)
def test_a_forbidden_import_is_found(module: str, statement: str) -> None:
    assert objections(module, statement)


def test_the_core_names_no_unit_of_the_plug_in() -> None:
    """The plug-in manages its own units, so neither code nor assets in the core may name them."""
    names = {name.removesuffix(".service") for name in (f"{PROBE}.service", *FLUSH_DROP_INS)}
    for package in {name for name in LEVEL if LEVEL[name] < LEVEL["azure"]} - {"phases", "_lazy"}:
        for path in (ROOT / "hostrouting" / package).rglob("*.*"):
            if "__pycache__" not in path.parts and path.is_file():
                assert {name for name in names if name in path.read_text()} == set(), path


def test_modules_have_no_import_cycles() -> None:
    modules: dict[str, set[str]] = {}
    for module, source in sources().items():
        found = imports(source)
        # "from package import module" imports the module. It uses the package only for names
        # defined in the package itself.
        inner = {name for name in found if name in sources()}
        modules[module] = {
            name
            for name in inner - {module}
            if not any(other.startswith(f"{name}.") for other in inner)
        }
    modules.pop("hostrouting")  # it imports its names when they are first used
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def effects(source: str) -> set[str]:
    """Return the modules and functions for I/O that a module uses, if it promises to use none."""
    module = nodes_of(source)[0]
    assert isinstance(module, ast.Module)
    promise = ast.get_docstring(module) or ""
    if PURE not in " ".join(promise.split()):
        return set()
    imported = imports(source, for_types=False)
    standard = {name for name in imported if name.partition(".")[0] in STANDARD_IO}
    called = {
        node.func.id
        for node in nodes_of(source)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return standard | imported & OUR_IO | called & BUILT_IN_IO


def test_a_module_that_promises_no_io_does_none() -> None:
    found = {module: effects(source) for module, source in sources().items()}
    assert {module: does for module, does in found.items() if does} == {}
    planted = f'"""Parse it.\n\n{PURE}\n"""\n'
    assert effects(f"{planted}import os.path\nfrom hostrouting.boot import files\nopen('x')") == {
        "os.path",
        "hostrouting.boot.files",
        "open",
    }


def test_the_modules_with_io_exist() -> None:
    assert sources().keys() >= OUR_IO


@pytest.mark.parametrize(
    ("package", "modules"),
    [
        ("pyroute2", {"hostrouting.kernel.namespace"}),
        ("rich", {"hostrouting.cli.drawn"}),
        ("shtab", {"hostrouting.cli.arguments"}),
        ("jinja2", {"hostrouting.cli.fleet"}),
        ("dask", set()),
        ("distributed", set()),
    ],
)
def test_only_one_module_imports_a_library(package: str, modules: set[str]) -> None:
    loaded = {name: imports(text, for_types=False) for name, text in sources().items()}
    users = {
        user
        for user, names in loaded.items()
        if any(name.partition(".")[0] == package for name in names)
    }
    assert users == modules


@pytest.mark.parametrize(
    ("statement", "unloaded"),
    [
        ("import hostrouting", "pyroute2 hostrouting.config"),
        (
            "from hostrouting import Config, StaticRoute",
            "pyroute2 asyncio hostrouting.tasks subprocess",
        ),
        (
            (
                "from hostrouting import Configure, Host, check, plan; "
                "from hostrouting.backend import NetlinkBackend"
            ),
            "pyroute2 asyncio",
        ),
        ("from hostrouting.testing import FakeKernel, FakeSystemd", "pyroute2 asyncio hypothesis"),
        (
            "import hostrouting.cli",
            (
                "pyroute2 rich shtab asyncio logging subprocess "
                "pathlib hostrouting.cli.demo hostrouting.cli.azure"
            ),
        ),
        (
            (
                "import hostrouting.cli.report, hostrouting.overlap.check, "
                "hostrouting.boot.host, hostrouting.kernel.netlink"
            ),
            "hostrouting.kernel.fib hostrouting.overlap._fix",
        ),
        ("from hostrouting import judge", "pyroute2 rich asyncio multiprocessing jinja2"),
        (
            "import phases; phases.run",
            "asyncio concurrent.futures logging subprocess phases._process",
        ),
    ],
)
def test_a_name_loads_only_what_it_needs(statement: str, unloaded: str) -> None:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    # coverage would load more.
    environment = os.environ | {"COVERAGE_PROCESS_CONFIG": ""}
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment,
    )
    by_attrs = {"subprocess"} if sys.version_info < (3, 11) else set()
    assert not ({*unloaded.split()} - by_attrs) & {*loaded.stdout.split()}


def late_imports(module: str, source: str) -> set[str]:
    """Return ``importing module: imported module`` for each import inside a function."""
    functions = [
        node
        for node in nodes_of(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = set[str]()
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & sources().keys() or {node.module or ""}
    return {f"{module}: {name}" for name in found}


def test_each_import_in_a_function_has_a_reason() -> None:
    """Add none that saves less than 5 ms of a command that people wait for."""
    lines = [line for line in LATE_IMPORTS.read_text().splitlines() if line]
    listed = [line for line in lines if not line.startswith("#")]
    found = {late for module, source in sources().items() for late in late_imports(module, source)}
    assert sorted(found - {*listed}) == [], "move it to the top, or say why not in late_imports.txt"
    assert sorted({*listed} - found) == [], "remove it from late_imports.txt"
    assert len(listed) == len({*listed})


def test_all_values_share_a_repr() -> None:
    """attrs.frozen would compile one for each class during the imports."""
    using = {module for module, source in sources().items() if "@attrs.frozen" in source}
    assert {module for module in using if module.startswith("hostrouting.")} == set()


def test_an_import_in_a_function_is_found() -> None:
    planted = """
import os
if x:
    import json
class C:
    async def f(self):
        import a.b, c
        def g():
            from hostrouting.kernel import fib
            from hostrouting.kernel.fib import Fib
            from importlib import resources
"""
    assert late_imports("m", planted) == {
        "m: a.b",
        "m: c",
        "m: hostrouting.kernel.fib",
        "m: importlib",
    }


def methods(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield each public method of a module, with its docstring."""
    for node in nodes_of(source):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    yield method.name, ast.get_docstring(method)


def test_methods_of_the_port_inherit_its_docstrings() -> None:
    """ruff's D102 is off for the backends, because it doesn't see what they inherit."""
    port = dict(methods(sources()["hostrouting.kernel.port"]))
    for module, source in sources().items():
        if not module.startswith("hostrouting.kernel.") or module.endswith(".port"):
            continue
        for name, docstring in methods(source):
            if docstring is None:
                assert name in port, f"{module}: {name} has no docstring"
            else:
                assert docstring != port.get(name), f"{module}: {name} repeats the port's docstring"


def tricks(module: str, source: str) -> list[str]:
    """Return a module's performance hacks, such as bypassing constructors or configuring the
    garbage collector.
    """
    made = [node for node in nodes_of(source) if isinstance(node, ast.Call)]
    # attrs documents this call as the way to set a field on a frozen instance.
    is_own = "object.__setattr__(self, "
    calls = [ast.unparse(node.func) for node in made if not ast.unparse(node).startswith(is_own)]
    found = [call for call in calls if call in ("id", "object.__setattr__")]
    found += [
        call
        for call in calls
        if call.endswith("__new__") and call not in ("super().__new__", "cls.__new__")
    ]
    found += ["gc"] if "gc" in imports(source) and module != "hostrouting.__main__" else []
    return [f"{module}: {trick}" for trick in found]


def test_no_module_uses_tricks_for_speed() -> None:
    """The garbage collector is shared by the whole process, and values must always be created by
    constructors.
    """
    assert [trick for module, source in sources().items() for trick in tricks(module, source)] == []
    planted = "import gc\nid(x)\nobject.__setattr__(x, 'y', 1)\nIPv4Network.__new__(IPv4Network)"
    assert len(tricks("hostrouting.model.planted", planted)) == 4
