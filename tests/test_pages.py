"""Tests that the code blocks of README and docs and the examples run, that links work, and that promises have tests."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from node import shadowed_kernel
from pages import PAGES, ROOT, Node, blocks

from hostrouting import ConfigError, Host, Layout, azure, cli
from hostrouting.doctor.examine import CHECKS
from hostrouting.overlap.findings import FindingKind, NoteKind
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Iterator


# These pages are generated, and the generators' tests check them.
MADE = {"docs/howto/h200.md", "docs/explanation/performance.md"}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MADE])
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    node = Node(tmp_path)
    for block in blocks((ROOT / name).read_text()):
        try:
            node.run(block)
        except Exception as error:
            error.add_note(f"{name}:{block.line}")
            raise


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub and MyST generate for the headings."""
    without_blocks = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", without_blocks, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        to = (ROOT / name).parent / path if path else ROOT / name
        assert to.exists(), target
        assert not anchor or anchor in anchors(to.read_text()), target


def test_every_page_is_in_the_sites_contents() -> None:
    listed = set(re.findall(r"^((?:\w+/)?[\w.-]+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index"} <= listed


@pytest.mark.parametrize(
    "lie",
    [
        "```console\n$ hostrouting check\nall is well\n```",
        "```console\n$ hostrouting frobnicate\n```",
        "```console\n$ systemctl start no-such-unit\n```",
        "```console\n$ ansible-playbook hostrouting.hostrouting.frobnicate\n```",
        "```console\n$ ./run frobnicate\n```",
        "```console\n$ pip install hostrouting[frobnicate]\n```",
        "```python\nfrom hostrouting import Frobnicate\n```",
        '```json\n{"hostRouting": {"frobnicate": true}}\n```',
        "```ini\nExecStartPre=/bin/true\n```",
        "```promql\nhostrouting_frobnicated\n```",
        "```\nwhat is this?\n```",
    ],
)
def test_a_page_with_a_false_block_fails(lie: str, tmp_path: Path) -> None:
    (block,) = blocks(lie)
    with pytest.raises((AssertionError, ImportError, ConfigError, KeyError)):
        Node(tmp_path).run(block)


def test_the_doctors_page_names_every_check() -> None:
    page = (ROOT / "docs/reference/doctor.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [each.name for each in CHECKS + azure.CHECKS]


def test_the_reports_page_names_every_kind_of_finding_and_note() -> None:
    page = (ROOT / "docs/reference/report.md").read_text()
    findings, _, notes = page.partition("\n## Notes\n")
    assert {*re.findall(r"^([A-Z-]+): expected CIDR ", findings, re.MULTILINE)} == {*FindingKind}
    rows = re.findall(r"^\| (`.*?`) \| ", notes, re.MULTILINE)
    assert sorted(kind for row in rows for kind in re.findall("`(.*?)`", row)) == sorted(NoteKind)


@pytest.mark.parametrize(
    ("program", "folder"),
    [("make_reference.py", "docs/reference"), ("make_schema.py", "hostrouting"), ("make_h200.py", "docs/howto")],
)
def test_generated_files_are_up_to_date(
    program: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / program), run_name="__main__")
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in made:
        name = path.relative_to(tmp_path)
        assert path.read_text() == (ROOT / folder / name).read_text(), f"{name} is stale: ./run docs"
    for picture in (path for path in made if path.suffix == ".svg"):
        assert any(f"]({picture.name})" in path.read_text() for path in (ROOT / folder).glob("*.md"))
        ElementTree.fromstring(picture.read_text())


# --- docs/promises.md --------------------------------------------------------------------------------------------------


PROMISES = (ROOT / "docs/promises.md").read_text()
HELD = re.findall(r"^(\S.*)\n: `(tests/[\w/]+\.py)::(test_\w+)`$", PROMISES, re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_promise_is_a_sentence_with_an_existing_test() -> None:
    assert [promise for promise, *_ in HELD if not promise.endswith(".")] == []
    assert [test for _, path, test in HELD if test not in names_in(path)] == []


def test_every_line_with_a_test_is_a_promise() -> None:
    assert len(HELD) == PROMISES.count("\n: ") > 30


def test_the_page_names_what_is_not_judged() -> None:
    text = " ".join(PROMISES.partition("## Not promised")[2].split())
    assert [word for word in ("mark", "type of service", "bound interface", "ports", "IPsec") if word not in text] == []


# --- docs/explanation/security.md --------------------------------------------------------------------------------------


SECURITY = (ROOT / "docs/explanation/security.md").read_text()
MODES = re.findall(r"^\| `(/\S+)` \| (0\d{3}) \|", SECURITY, re.MULTILINE)
TOKEN = "0123456789abcdef-token"
DOCUMENT = {
    "azure": {"bootstrapToken": TOKEN},
    "hostRouting": {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"]},
        "watch": {"enabled": True},
    },
}


@pytest.fixture
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Layout]:
    """Return the layout after running ``apply`` with the test's umask."""
    layout = Layout(tmp_path)
    layout.config.parent.mkdir(parents=True)
    layout.config.write_text(json.dumps(DOCUMENT))
    before = os.umask(getattr(request, "param", 0o022))
    try:
        assert cli.main(["apply"], host=Host(shadowed_kernel(), FakeSystemd(layout), layout)) == 0
        yield layout
    finally:
        os.umask(before)


@pytest.mark.parametrize("installed", [0, 0o077], indirect=True)
def test_files_have_the_modes_of_the_page_under_any_umask(installed: Layout) -> None:
    assert len(MODES) > 10
    found = {name: f"{stat.S_IMODE(installed.of(name).stat().st_mode):04o}" for name, _ in MODES}
    assert found == dict(MODES)


def test_no_key_of_another_component_leaves_the_config(installed: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [path.read_text() for path in installed.root.rglob("*") if path.is_file() and path != installed.config]
    assert len(texts) > 10
    assert [text for text in (*texts, *capsys.readouterr()) if TOKEN in text or "bootstrapToken" in text] == []


def test_the_watcher_has_the_rights_of_the_page(installed: Layout) -> None:
    (row,) = [line for line in SECURITY.splitlines() if "`hostrouting-watch.service`" in line]
    unit = (installed.units / "hostrouting-watch.service").read_text()
    assert "CapabilityBoundingSet=CAP_NET_ADMIN\n" in unit
    assert "root with CAP_NET_ADMIN alone" in row
    for setting in re.findall(r"`(\w+=\w*)`", row):
        assert f"\n{setting}" in unit


# --- examples ----------------------------------------------------------------------------------------------------------


EXAMPLES = ROOT / "examples"

# Each example's arguments, one line of its output, and the prefix of each line on its standard error.
RUNS = {
    "azure_node.py": ([], "probes are rewritten on eth0", None),
    "agent.py": (["--try"], "1 routes added; verdict: ok; started kube1", "INFO "),
}
# These files aren't programs; the backends are tested in tests/kernel/test_example_backend.py.
RUN_ELSEWHERE = {"test_agent.py", "ip_command_backend.py", "pyroute2_backend.py"}


@cache
def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*") if path.is_file()} == RUN_ELSEWHERE | set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name: str) -> None:
    arguments, line, log = RUNS[name]
    done = run_example(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert [each for each in done.stderr.splitlines() if log is None or not each.startswith(log)] == []
    assert line in done.stdout.splitlines()


def test_the_agents_own_tests_pass_outside_this_project(tmp_path: Path) -> None:
    for name in ("agent.py", "test_agent.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_agent.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_agent_names_the_path_of_each_problem(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    routes = [{"destination": "172.16.1.7/24"}, {"destination": "10.9.0.0/16", "gatway": "10.1.0.1"}]
    overlap = {"mode": "LOOSE"}
    document = {"hostRouting": {"staticRoutes": {"enabled": True, "routes": routes}, "routeOverlap": overlap}}
    config.write_text(json.dumps(document))
    done = run_example("agent.py", str(config))
    assert done.returncode == 78
    assert done.stdout == ""
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "hostRouting.staticRoutes.routes[0].destination",
        "hostRouting.staticRoutes.routes[1].gatway",
        "hostRouting.routeOverlap.mode",
    ]
