"""The floors: a module imports only lower ones; the pure ones touch nothing; pyroute2 stays in one place."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up; a module may import its own floor's and all lower ones'.
FLOORS = [
    {"errors", "netaddr", "model"},
    {"_schema", "_values", "_document", "config", "networking", "layout", "backends", "systemd"}
    | {"lb_probe", "azure_vnet", "azure_vnet.model"},
    {
        "rules",
        "fib",
        "default_route",
        "nexthops",
        "resolve",
        "plan",
        "proof",
        "coverage",
        "findings",
        "overlap",
        "remedy",
        "strips",
        "drawing",
        "gate",
        "render",
        "readback",
        "diagnosis",
        "formats",
        "_ip_read",
        "_ip_write",
        "snapshot",
        "patience",
        "news",
        "metrics",
        "lb_probe.ruleset",
        "lb_probe.plan",
        "azure_vnet.parse",
        "azure_vnet.plan",
    },
    {"backends.*", "systemd.*", "files", "resolvers", "host", "notify", "foes"}
    | {"lb_probe.linux", "lb_probe.metadata", "lb_probe.memory"}
    | {"azure_vnet.linux", "azure_vnet.lock", "azure_vnet.memory"},
    {"parts", "install", "boot", "verify", "wait", "scene", "check", "record", "repair", "lb_probe.part"},
    {"styled", "report", "markers", "nagios", "pictures", "tasks", "foresee", "journal", "doctor", "doctor.*"}
    | {"lb_probe.tasks", "lb_probe.wording", "azure_vnet.tasks", "azure_vnet.wording"},
    {
        "progress",
        "options",
        "verbose",
        "signals",
        "watch",
        "commands",
        "arguments",
        "cli",
        "demo",
        "lb_probe.commands",
        "azure_vnet.commands",
        "__main__",
        "testing",
        "testing.*",
    },
]
PURE = {"errors", "netaddr", "model", *FLOORS[2]}
IMPURE_MODULES = {"os", "subprocess", "socket", "time", "logging", "datetime", "pathlib", "random"}
# errors puts errno into words with os.strerror: no state, no call into the system.
ALLOWED = {("errors", "os")}


@functools.cache
def modules() -> dict[str, ast.Module]:
    package = ROOT / "hostrouting"
    found = {}
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def floor_of(name: str) -> int:
    parent = name.rpartition(".")[0]
    for number, names in enumerate(FLOORS):
        if name in names or any(n.endswith(".*") and (parent + ".").startswith(n[:-1]) for n in names):
            return number
    raise AssertionError(f"hostrouting.{name} has no floor: give it one in FLOORS")


def imports(tree: ast.Module) -> set[str]:
    """Every module that is imported when a program runs; what only type checkers read doesn't count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            assert node.module is not None
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("name", sorted(set(modules()) - {"__init__"}))
def test_a_module_imports_only_lower_floors(name: str) -> None:
    known = set(modules())
    own = floor_of(name)
    for imported in imports(modules()[name]):
        target = imported.removeprefix("hostrouting.")
        if imported.startswith("hostrouting.") and target in known:
            assert floor_of(target) <= own, f"hostrouting.{name} (floor {own}) imports hostrouting.{target} above it"


def test_the_design_names_every_module_on_its_floor() -> None:
    rows = re.findall(r"^\| (\d) \| (.*?) \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)
    told = {int(number) - 1: set(re.findall(r"`([\w.]+)`", words)) for number, words in rows}
    for number, names in enumerate(FLOORS):
        assert told[number] >= {name for name in names if not name.endswith("*")}


@pytest.mark.parametrize("name", sorted(PURE))
def test_a_pure_module_touches_nothing(name: str) -> None:
    touched = {imported.partition(".")[0] for imported in imports(modules()[name])} & IMPURE_MODULES
    assert {module for module in touched if (name, module) not in ALLOWED} == set()


def test_only_one_module_imports_pyroute2() -> None:
    users = {name for name, tree in modules().items() if any(i.partition(".")[0] == "pyroute2" for i in imports(tree))}
    assert users == {"backends._pyroute2"}


def test_phases_knows_nothing_of_hostrouting() -> None:
    for path in (ROOT / "phases").rglob("*.py"):
        assert not any(i.partition(".")[0] == "hostrouting" for i in imports(ast.parse(path.read_text()))), path


@pytest.mark.parametrize(
    ("statement", "unloaded"),
    [
        ("import hostrouting", ["attrs", "pyroute2", "hostrouting.config"]),
        ("from hostrouting import Config, StaticRoute", ["pyroute2", "asyncio", "hostrouting.tasks", "subprocess"]),
        ("from hostrouting import Configure, Host, NetlinkBackend", ["pyroute2", "asyncio"]),
        ("from hostrouting.testing import FakeKernel, FakeSystemd", ["pyroute2", "asyncio", "hypothesis"]),
        (
            "import hostrouting.cli",
            ["pyroute2", "asyncio", "hostrouting.demo", "logging", "subprocess", "pathlib", "json"],
        ),
        ("import phases; phases.run", ["asyncio", "logging", "subprocess", "phases._compose"]),
    ],
)
def test_a_name_loads_no_more_than_it_needs(statement: str, unloaded: list[str]) -> None:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(unloaded) & set(loaded.stdout.split())


def test_no_module_is_without_a_look_at_its_size() -> None:
    """Over 400 lines a module holds two subjects, as a rule; name it here once you have looked."""
    looked_at = {"hostrouting/model.py"}
    large = {
        str(path.relative_to(ROOT))
        for package in ("hostrouting", "phases")
        for path in (ROOT / package).rglob("*.py")
        if len(path.read_text().splitlines()) > 400
    }
    assert large <= looked_at
