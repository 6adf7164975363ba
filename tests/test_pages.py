"""Tests that the code blocks of README and docs and the examples run, that links work, and that
promises have tests.

The blocks of a page run in document order, on an in-memory node. How one is run depends on its
language; all other text is tagged ``text``:

    console   each line that starts with "$ " is a command, followed by its full output; "…"
              matches anything
    python    code that shares one namespace with the page's other blocks; ``Host()`` is the
              page's node
    json      a config, saved as the node's config.json, and in the folder where commands run
    ini       a part of a file that is installed by that point
    sh        text that --help prints
    promql    metrics of the watcher

hostrouting commands run in this process, and coreutils run in the node's root directory. In other
commands, only the names of our files are checked.

Sybil isn't used, because it would replace only the six lines that find the blocks.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import attrs
import pytest
from azure_fakes import FakeBridgeNode, FakeProbeNode, on_fakes
from file_trees import write_file, write_link
from node import add_nics, default_route, shadowed_kernel
from wanted import MACHINE, SHADOWED, TrialSystemd, config, section

import phases
from hostrouting import Config, ConfigError, Host, Layout, __version__, azure, cli
from hostrouting.azure import HostNetworking, NodeState
from hostrouting.backend import Table, Write, read_routes
from hostrouting.cli.arguments import all_commands
from hostrouting.cli.default_config import note_on_default
from hostrouting.config import documents
from hostrouting.doctor.examine import CHECKS
from hostrouting.model.family import Family
from hostrouting.overlap.findings import FindingKind, NoteKind
from hostrouting.testing import FakeKernel, FakeSystemd

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
STALE_RULE = (
    "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.241.0.20 "
    "-j dnat --to-dst 3e:aa:00:00:00:14 --dnat-target ACCEPT"
)


@attrs.frozen
class Block:
    """A fenced block.

    Args:
        language: the info string of the opening fence.
        text: the lines between the fences.
        line: the line number of the opening fence.
    """

    language: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """Yield a page's fenced code blocks."""
    for found in re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], page[: found.start()].count("\n") + 1)


class Node:
    """An in-memory node with eight InfiniBand interfaces that shadow 172.16.0.0/16, and a folder
    for commands.

    Args:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root / "root", root / "folder"
        self.folder.mkdir()
        for machine in ("", "mnt/image/"):
            unit = self.root / machine / "usr/lib/systemd/system/systemd-nspawn@.service"
            write_file(unit, "[Service]\nExecStart=systemd-nspawn\n")
        self.kernel = FakeKernel()
        own = {f"ib{number}": f"172.16.0.{10 + number}/16" for number in range(8)}
        add_nics(self.kernel, eth0="10.1.0.4/24", **own)
        assert self.kernel.write(Write.ADD, [default_route(metric=0)]) == ()
        layout = Layout(self.root)
        layout.config.parent.mkdir(parents=True)
        self.host = Host(routes=self.kernel, units=TrialSystemd(layout, self.kernel), layout=layout)
        self.names: dict[str, Any] = {}
        self.azure = FakeProbeNode(), FakeBridgeNode(NodeState(rules=(STALE_RULE,)))
        for name in ("bash", "ip", "awk", "flock", "timeout"):
            self._program(name)
        self._json('{"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}}')

    def _program(self, name: str) -> None:
        write_link(self.root / "usr/bin" / name, shutil.which(name) or "/bin/true")
        write_file(self.root / "mnt/image/usr/bin" / name, mode=0o755)

    def run(self, block: Block) -> None:
        """Run a block, or compare its contents with the node."""
        if block.language.startswith("{"):
            return  # a Sphinx directive
        runners: dict[str, Callable[[str], None]] = {
            "console": self._console,
            "python": self._python,
            "json": self._json,
            "ini": self._ini,
            "sh": self._sh,
            "promql": self._promql,
            "text": lambda _: None,
        }
        runners[block.language](block.text)

    # --- languages --------------------------------------------------------------------------------

    def _console(self, text: str) -> None:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            said = self._line(command)
            if shown:
                assert _is_like(said, shown), f"{command}\n{said}"

    def _python(self, text: str) -> None:
        tree = compile(text, "a page", "exec")
        cluster = mock.MagicMock()  # Dask's cluster
        with (
            self._as_this_host(),
            contextlib.redirect_stdout(io.StringIO()),
            pytest.MonkeyPatch.context() as patched,
            ThreadPoolExecutor(1) as executor,
        ):
            # Replace only this module, because everything else that a block imports must stay
            # loaded for later blocks.
            patched.setitem(sys.modules, "distributed", cluster)
            cluster.Client().__enter__().get_executor.return_value = executor
            exec(tree, self.names)

    def _json(self, text: str) -> None:
        document = json.loads(text)
        assert document.keys() <= {"hostRouting", "hostNetworking"}
        Config.from_mapping(document)
        HostNetworking.from_mapping(document)
        for path in (self.host.layout.config, self.folder / "config.json"):
            path.write_text(text)

    def _ini(self, text: str) -> None:
        assert any(
            text in path.read_text()
            for path in self.host.layout.root.rglob("etc/**/*")
            if path.is_file()
        )

    def _sh(self, text: str) -> None:
        assert textwrap.indent(text, "  ") in self._line("hostrouting snapshot --help")

    def _promql(self, text: str) -> None:
        source = "".join(
            (ROOT / f"hostrouting/{name}.py").read_text()
            for name in ("watch/outputs", "watch/metrics")
        )
        for metric in re.findall(r"hostrouting_(\w+)", text):
            assert metric in source

    # --- commands ---------------------------------------------------------------------------------

    def _line(self, line: str) -> str:
        """Return a command line's output.

        Of the shell's syntax, only ``&&``, ``|`` and ``>`` are supported.
        """
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|>;")
        lexer.whitespace_split = True
        said: list[str] = []
        words: list[str] = []
        given = ""
        for word in [*lexer, ";"]:
            if word in ("&&", "|", ";"):
                out, err = self._command(words, given)
                given, words = (out, []) if word == "|" else ("", [])
                said += [err] if word == "|" else [out, err]
            else:
                words.append(word)
        return "".join(said)

    def _command(self, words: list[str], given: str) -> tuple[str, str]:
        where = None
        if ">" in words:
            *words, _, where = words
        while words[0] == "sudo" or re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        program, *arguments = (each for word in words for each in self._globbed(word))
        if program.endswith("hostrouting"):
            out, err = self._hostrouting(arguments, given)
        elif program in ("cat", "cp", "mv", "rm", "touch", "mkdir", "ls"):
            done = subprocess.run(
                [program, *map(self._below, arguments)],
                cwd=self.folder,
                capture_output=True,
                text=True,
            )
            out, err = done.stdout, done.stderr
        elif words[:3] == ["ip", "route", "show"]:
            out, err = "".join(f"{route}\n" for route in read_routes(self.kernel, Table.MAIN)), ""
        elif words[:3] == ["ip", "route", "get"]:
            out, err = self._looked_up(words[3], *words[5:]), ""
        elif program == "ip":
            self.kernel.ip(shlex.join(arguments).partition(" type ")[0])
            out, err = "", ""
        else:
            out, err = OTHERS[program](self, arguments), ""
        if where is not None:
            (self.folder / self._below(where)).write_text(out)
            out = ""
        return out, err

    def _hostrouting(self, arguments: list[str], given: str) -> tuple[str, str]:
        out, err = io.StringIO(), io.StringIO()
        stdin = mock.Mock(buffer=io.BytesIO(given.encode()))
        with (
            self._in_folder(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "stdin", stdin),
            on_fakes(*self.azure),
        ):
            code = cli.main([self._below(word) for word in arguments], host=self.host)
        assert code in (0, 1, 2), err.getvalue()
        return self._as_on_the_node(out.getvalue()), self._as_on_the_node(err.getvalue())

    def _as_on_the_node(self, said: str) -> str:
        return said.replace(f"{self.root}/", "/").replace(
            f"on {os.uname().nodename}:", "on node-7:"
        )

    def _looked_up(self, address: str, source: str = "") -> str:
        asked = [IPv4Address(address)]
        (found,) = self.kernel.lookup(asked, source=IPv4Address(source) if source else None)
        assert found.route is not None
        hop = found.route.hops[0].words(Family.IPV4)
        if source:
            return f"{address} from {source} {hop} table {found.route.table} uid 0\n    cache\n"
        ((chosen,),) = self.kernel.sources([(found.route, asked)])
        return f"{address} {hop} src {chosen} uid 0\n    cache\n"

    def _globbed(self, word: str) -> list[str]:
        found = (
            sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word))
            if "/*" in word
            else []
        )
        return found or [word]

    def _below(self, word: str) -> str:
        return (
            f"{self.root}{word}" if word.startswith("/") and not re.search(r"/\d+$", word) else word
        )

    # --- python -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_this_host(self) -> Iterator[None]:
        build, read, image = Host.__init__, documents.read_document, Host.image

        def built(host: Host, *args: Any, **kwargs: Any) -> None:
            ours = self.host
            if args or kwargs:
                build(host, *args, **kwargs)
            else:
                build(host, ours.routes, ours.units, ours.layout)

        def read_below(path: Any, *args: Any, **kwargs: Any) -> Any:
            return read(self._below(str(path)), *args, **kwargs)

        with (
            mock.patch.object(Host, "__init__", built),
            mock.patch.object(documents, "read_document", read_below),
            mock.patch.object(Host, "image", lambda root: image(self._below(root))),
            self._in_folder(),
            on_fakes(*self.azure),
        ):
            yield

    @contextlib.contextmanager
    def _in_folder(self) -> Iterator[None]:
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            yield
        finally:
            os.chdir(before)


def _is_like(said: str, shown: str) -> bool:
    pattern = re.escape(shown.rstrip()).replace("…", r"[\s\S]*?")
    return re.fullmatch(pattern, said.rstrip()) is not None


# --- commands of other programs: check the names of our files in them -----------------------------


def _run(_node: Node, arguments: list[str]) -> str:
    assert re.search(rf"^  {re.escape(arguments[0])} ", (ROOT / "run").read_text(), re.MULTILINE), (
        arguments
    )
    return ""


def _systemctl(node: Node, arguments: list[str]) -> str:
    own = {
        f"{name}.service"
        for name in (
            "static-routes",
            "check-route-overlap",
            "hostrouting-watch",
            "load-balancer-probe",
        )
    }
    for word in arguments[1:]:
        unit = word if "." in word else f"{word}.service"
        assert unit in {*own, MACHINE}, word
    return ""


def _pip(_node: Node, arguments: list[str]) -> str:
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    for found in re.findall(r"\[(\w+)\]", " ".join(arguments)):
        assert f"\n{found} = [" in extras
    return ""


def _ansible(_node: Node, arguments: list[str]) -> str:
    collection = ROOT / "deploy/ansible/ansible_collections/hostrouting/hostrouting"
    for word in arguments:
        name = word.removeprefix("hostrouting.hostrouting.")
        there = (f"playbooks/{name}.yml", f"plugins/modules/{name}.py")
        assert name == word or any((collection / each).exists() for each in there), word
        assert not word.startswith("./") or (ROOT / word).is_dir(), word
    return ""


OTHERS: dict[str, Callable[[Node, list[str]], str]] = {
    "./run": _run,
    "systemctl": _systemctl,
    "journalctl": lambda node, words: _systemctl(
        node, ["status", *(word for word in words if word[0] not in "-")]
    ),
    "pip": _pip,
    "/opt/hostrouting/bin/pip": _pip,
    "pipx": _pip,
    "ssh": lambda node, words: node._line(words[-1]),
    "ansible-playbook": _ansible,
    "ansible-galaxy": _ansible,
    "ansible": _ansible,
    **dict.fromkeys(
        ("[", "apt", "apt-get", "duckdb", "python3", "mount", "umount", "ln"), lambda *_: ""
    ),
}


# --- pages ----------------------------------------------------------------------------------------


# These pages' sections are generated, and the generators' tests check them. Their introductions run
# like other pages.
MADE = {
    "docs/howto/your-symptom.md",
    "docs/reference/incidents.md",
    "docs/contributing/performance.md",
}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md"])
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    node, page = Node(tmp_path), (ROOT / name).read_text()
    for block in blocks(page.partition("\n## ")[0] if name in MADE else page):
        try:
            node.run(block)
        except Exception as error:
            error.add_note(f"{name}:{block.line}")
            raise


@pytest.mark.kernel
def test_the_tests_on_linux_run(tmp_path: Path) -> None:
    """It runs in a process of its own, as it would move this one to another namespace."""
    page = (ROOT / "docs/howto/embed.md").read_text()
    tests_from = "FakeKernel()", "def test_on_linux", "CountingBackend("
    found = [block.text for block in blocks(page) if any(map(block.text.__contains__, tests_from))]
    usual = "max_examples=100, steps=30"
    assert found[-1].endswith(f"TestMyBackend = conformance_test(my_kernel, {usual})\n")
    imports = "import phases\nfrom hostrouting import Config, Configure"
    proof = "\n".join((imports, *found)).replace(usual, "max_examples=1, steps=3")
    write_file(tmp_path / "test_backend.py", proof)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_backend.py"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/tutorial.md",
        "docs/howto/h200.md",
        "docs/howto/roll-out.md",
    ],
)
def test_after_a_page_nothing_is_left_to_copy(name: str, tmp_path: Path) -> None:
    """Otherwise, the next ``apply`` without CONFIG would install something else."""
    node = Node(tmp_path)
    applied = 0
    for block in blocks((ROOT / name).read_text()):
        assert not re.search(r"^\$ .*config set", block.text, re.MULTILINE)
        if applied and "hostrouting remove" in block.text:
            break
        node.run(block)
        if re.search(r"^\$ .*hostrouting (apply$|confirm)", block.text, re.MULTILINE):
            applied += 1
            assert cli.main(["plan"], host=node.host) == 0
            assert note_on_default(node.host) == ""
    assert applied


def test_each_command_that_the_library_names_has_a_counterpart() -> None:
    """Programs get hints with these commands, too."""
    page = (ROOT / "docs/reference/api.md").read_text()
    table = page.partition("| command | in a program |")[2].partition("\n\n")[0]
    rows = [row.split(" | ")[0] for row in table.splitlines()]
    listed = {name for row in rows for name in re.findall(r"[`|, ]([a-z][a-z-]+)\b", row)}
    named = set[str]()
    for path in (ROOT / "hostrouting").rglob("*.py"):
        if not path.is_relative_to(ROOT / "hostrouting/cli"):
            named.update(re.findall(r"hostrouting ([a-z-]+)", path.read_text()))
    commands = named & {*all_commands()} - {"config"}  # "config" is only a noun there
    assert commands >= {"apply", "remove", "revert", "doctor"}
    assert commands <= listed


def test_the_page_prints_no_entries_if_none_are_needed(tmp_path: Path) -> None:
    """The config lists what fixes this, but the kernel lacks it."""
    node = Node(tmp_path)
    for block in blocks((ROOT / "docs/howto/embed.md").read_text()):
        if "except RouteOverlapError" in block.text:
            break
        node.run(block)
    node.kernel.ip("route del 172.16.1.0/24")
    node.names["config"] = config("172.16.1.0/24", keep=["ib*"])
    printed: list[tuple[object, ...]] = []
    node.names["print"] = lambda *words: printed.append(words)
    node.run(block)
    assert [each for each in printed if each[-1] == {"enabled": True}] == []
    assert printed


def test_the_own_task_of_the_page_rolls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is the page's own; only its program doesn't end before the deadline."""
    node = Node(tmp_path)
    for block in blocks((ROOT / "docs/howto/embed.md").read_text()):
        node.run(block)
        if "all_or_nothing" in block.text:
            break
    write_file(tmp_path / "bin/touch", '#!/bin/sh\n: > "$1"\nexec sleep 3600\n', mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    image = tmp_path / "image"
    image.touch()
    with pytest.raises(phases.TimedOut):
        phases.run(phases.Timeout(0.5, node.names["PullImage"](str(image))))
    assert not image.exists()


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


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/contributing/design.md"])
def test_pages_for_contributors_name_existing_files(page: str) -> None:
    names = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", (ROOT / page).read_text())
    named = {
        name.rstrip("/")
        for name in names
        if "/" in name or re.search(r"\.(py|md|toml|txt|json|yml)$", name)
    }
    folders = "hostrouting", "tests", "docs", "examples", "deploy", "phases"
    known = [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*")]
    there = [f"/{path}" for path in known]
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in there)}
    assert len(named) > 30
    assert {name for name in missing if not (ROOT / name).exists()} == set()


def test_the_design_names_each_module_or_its_folder() -> None:
    page = (ROOT / "docs/contributing/design.md").read_text()
    named = {*re.findall(r"`([\w/]+(?:\.py|/))`", page)}
    unnamed = []
    for path in (*(ROOT / "hostrouting").glob("*/**/*.py"), *(ROOT / "phases").glob("*.py")):
        module = str(path.relative_to(ROOT)).removeprefix("hostrouting/")
        folders = {f"{folder}/" for folder in Path(module).parents}
        if path.name != "__init__.py" and named.isdisjoint({module, path.name, *folders}):
            unnamed.append(module)
    assert unnamed == [], "docs/contributing/design.md needs them in the table Where to look"


def test_nothing_names_a_distribution_that_no_index_has() -> None:
    """Otherwise, another project with that name on PyPI would get its code onto the reader's
    machine.
    """
    texts = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    for folder in ("hostrouting", "phases", "examples", "deploy"):
        texts += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in (".py", ".md", ".sh", ".yml", ".toml")
        ]
    from_an_index = re.compile(
        r"""(?<![\w./-])hostrouting\[\w+\]"""
        r"""|pipx? (?:install|inject) (?:.*[ '"])?hostrouting\b(?![/-])"""
    )
    assert from_an_index.search("pip install hostrouting") is not None
    assert from_an_index.search("the extra 'hostrouting[html]'") is not None
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in texts
        for line in path.read_text().splitlines()
        if from_an_index.search(line)
    ]
    assert found == []


def test_the_changelog_and_the_collection_have_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version, day = re.findall(r"^## \[(\d\S*)\] - (\S+)$", changelog, re.MULTILINE)[0]
    assert version == __version__
    assert date.fromisoformat(day).isoformat() == day
    collection = ROOT / "deploy/ansible/ansible_collections/hostrouting/hostrouting/galaxy.yml"
    assert f"\nversion: {version}\n" in collection.read_text()


def test_every_page_is_in_the_sites_contents() -> None:
    listed = set(
        re.findall(r"^((?:\w+/)?[\w.-]+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    )
    pages = {
        str(page.relative_to(ROOT / "docs").with_suffix(""))
        for page in (ROOT / "docs").rglob("*.md")
    }
    missing = pages - {"index"} - listed
    assert not missing, f"add to the contents in docs/index.md: {sorted(missing)}"


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
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)
    order = "docs/reference/doctor.md needs a row for each check, in the order of CHECKS"
    assert rows == [each.name for each in CHECKS + azure.CHECKS], order


def test_the_reports_page_names_every_kind_of_finding_and_note() -> None:
    page = (ROOT / "docs/reference/report.md").read_text()
    findings, _, notes = page.partition("\n## Notes\n")
    told = {*re.findall(r"^([A-Z-]+): expected CIDR ", findings, re.MULTILINE)}
    place = "docs/reference/report.md needs one line `KIND: expected CIDR …` in a text block"
    assert told == {*FindingKind}, f"{place} above Notes for each kind of finding"
    rows = re.findall(r"^\| (`.*?`) \| ", notes.partition("\n## ")[0], re.MULTILINE)
    noted = sorted(kind for row in rows for kind in re.findall("`(.*?)`", row))
    assert noted == sorted(NoteKind), "docs/reference/report.md needs a row for each kind of note"


@pytest.mark.parametrize(
    ("program", "folder"),
    [
        ("make_reference.py", "docs/reference"),
        ("make_schema.py", "hostrouting"),
        ("make_symptoms.py", "docs"),
        ("make_kernels.py", "docs/contributing"),
    ],
)
def test_generated_files_are_up_to_date(
    program: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / program), run_name="__main__")
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    kept = {path: ROOT / folder / path.relative_to(tmp_path) for path in made}
    stale = [
        str(here.relative_to(ROOT))
        for path, here in kept.items()
        if not here.exists() or path.read_text() != here.read_text()
    ]
    assert stale == [], f"run ./run python docs/{program}, and commit what it writes"
    for picture in (path for path in made if path.suffix == ".svg"):
        assert any(
            f"]({picture.name})" in path.read_text() for path in (ROOT / folder).glob("*.md")
        )
        ElementTree.fromstring(picture.read_text())


def test_an_empty_default_is_printed_with_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    @attrs.frozen
    class Defaults:
        name: str | None = None
        mode: str = "WARN"
        path: str = ""
        seconds: int = 30

    monkeypatch.syspath_prepend(ROOT / "docs")
    default_of = runpy.run_path(str(ROOT / "docs/make_reference.py"))["_default"]
    printed = [default_of(field).removeprefix("default: ") for field in attrs.fields(Defaults)]
    assert printed == ["none", "`WARN`", '`""`', "`30`"]


def test_no_default_makes_a_signature_unreadable() -> None:
    pytest.importorskip("sphinx", reason="sphinx isn't installed")
    conf = runpy.run_path(str(ROOT / "docs/conf.py"))
    assert conf["short_signature"](Layout) == f"(root={Path('/')!r})"
    assert len(conf["short_signature"](Config)) < 200


# --- words ----------------------------------------------------------------------------------------


# The most words of a page, by "wc -w", and of all of them together.
MOST_FOR_USERS = 26_000
MOST_FOR_CONTRIBUTORS = 12_000
WORDS = {
    "README.md": 900,
    "docs/index.md": 250,
    "docs/tutorial.md": 1000,
    "docs/howto/azure-vnet.md": 650,
    "docs/howto/embed.md": 1637,
    "docs/howto/fleet.md": 1290,
    "docs/howto/h200.md": 795,
    "docs/howto/held.md": 840,
    "docs/howto/images.md": 650,
    "docs/howto/install.md": 620,
    "docs/howto/load-balancer-probe.md": 750,
    "docs/howto/monitoring.md": 900,
    "docs/howto/roll-out.md": 1300,
    "docs/howto/second-nic.md": 835,
    "docs/howto/snapshots.md": 500,
    "docs/howto/upgrade.md": 840,
    "docs/howto/what-changed.md": 550,
    "docs/explanation/fix.md": 600,
    "docs/explanation/gate.md": 1200,
    "docs/explanation/ipv6.md": 1000,
    "docs/explanation/limits.md": 300,
    "docs/explanation/policy-routing.md": 1187,
    "docs/explanation/security.md": 2045,
    "docs/explanation/verdict.md": 1850,
    "docs/reference/dependency.md": 550,
    "docs/reference/doctor.md": 960,
    "docs/reference/report.md": 1570,
    "docs/reference/watch.md": 1260,
}
CONTRIBUTORS_WORDS = {
    "CONTRIBUTING.md": 3310,
    "docs/contributing/design.md": 3200,
    "docs/contributing/gate.md": 850,
    "docs/contributing/promises.md": 3800,
    "docs/contributing/proof.md": 1350,
}
# Programs write most of these pages.
GENERATED = {
    "docs/contributing/compared.md",
    "docs/contributing/kernels.md",
    "docs/contributing/performance.md",
    "docs/howto/your-symptom.md",
    "docs/reference/api.md",
    "docs/reference/commands.md",
    "docs/reference/config.md",
    "docs/reference/incidents.md",
}
ALL_NAMES = {*NAMES, "CONTRIBUTING.md"}


def words(name: str) -> int:
    return len((ROOT / name).read_text().split())


def words_left(name: str) -> int:
    """Return by how many words all pages for the readers of this page may grow together."""
    if name in CONTRIBUTORS_WORDS:
        return MOST_FOR_CONTRIBUTORS - sum(map(words, CONTRIBUTORS_WORDS))
    return MOST_FOR_USERS - sum(map(words, WORDS))


def too_long(name: str, count: int, most: int, left: int) -> str:
    """Return what to do about a page with more words than its limit, if all such pages together
    have ``left`` words left.
    """
    told = f"{name} has {count} words, {count - most} more than its limit of {most}"
    shorter = "say it in fewer words, or delete what another page says"
    if name == "README.md" or left < 0:
        return f"{told}: {shorter}"
    larger = "raise the page's limit in tests/test_pages.py"
    return f"{told}: {shorter}, or {larger} (all such pages together may grow by {left} words)"


@pytest.mark.parametrize(("name", "most"), sorted((WORDS | CONTRIBUTORS_WORDS).items()))
def test_a_page_keeps_to_its_words(name: str, most: int) -> None:
    count = words(name)
    assert count <= most, too_long(name, count, most, words_left(name))


@pytest.mark.parametrize(
    ("limits", "most"),
    [(WORDS, MOST_FOR_USERS), (CONTRIBUTORS_WORDS, MOST_FOR_CONTRIBUTORS)],
    ids=["for users", "for contributors"],
)
def test_all_pages_together_keep_to_their_words(limits: dict[str, int], most: int) -> None:
    count = sum(map(words, limits))
    shorter = "on any of them, say something in fewer words, or delete what another page says"
    assert count <= most, (
        f"{', '.join(limits)}: {count} words together, of at most {most}: {shorter}"
    )


def test_each_page_has_a_limit_or_is_generated() -> None:
    limited, pages = {*WORDS, *CONTRIBUTORS_WORDS}, ALL_NAMES - GENERATED
    unlimited = sorted(pages - limited)
    assert not unlimited, f"WORDS or CONTRIBUTORS_WORDS needs a limit for each of {unlimited}"
    assert limited == pages, f"no such pages: {sorted(limited - pages)}"


@pytest.mark.parametrize(
    ("name", "left", "may_grow"),
    [
        ("README.md", 50, False),
        ("docs/reference/report.md", 50, True),
        ("docs/reference/report.md", 0, True),
        ("docs/reference/report.md", -1, False),
    ],
)
def test_a_page_that_is_too_long_has_a_hint(name: str, left: int, may_grow: bool) -> None:
    told = too_long(name, 914, 900, left)
    assert told.startswith(f"{name} has 914 words, 14 more than its limit of 900: say it in fewer")
    assert ("raise the page's limit" in told) is may_grow
    assert (f"may grow by {left} words" in told) is may_grow


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of ten words or more, outside of blocks and without links' targets."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "", prose)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#:]|\d+\. )|\|", prose):
        for sentence in re.split(r"(?<=[.!?:])\s+", paragraph):
            found = re.findall(r"[\w./'-]*\w", sentence.lower())
            if len(found) >= 10:
                yield " ".join(found)


def test_no_sentence_stands_on_two_pages() -> None:
    """Generated pages may share a sentence with each other, because they share its source."""
    pages: dict[str, set[str]] = {}
    for name in ALL_NAMES:
        for sentence in sentences((ROOT / name).read_text()):
            pages.setdefault(sentence, set()).add(name)
    assert len(pages) > 1000
    twice = {sentence: names for sentence, names in pages.items() if len(names) > 1}
    assert {sentence: names for sentence, names in twice.items() if names - GENERATED} == {}


def test_a_sentence_is_found_across_lines_and_links() -> None:
    told = "A  node that is [held](held.md) starts by\nitself within a second. Yes."
    assert [*sentences(told)] == ["a node that is held starts by itself within a second"]


# --- docs/contributing/promises.md ----------------------------------------------------------------


PROMISES = (ROOT / "docs/contributing/promises.md").read_text()
HELD = re.findall(r"^(\S.*)\n: `(tests/[\w/]+\.py)::(test_\w+)`$", PROMISES, re.MULTILINE)


@cache
def names_in(path: str) -> set[str]:
    return {*re.findall(r"^ *def (test_\w+)\(", (ROOT / path).read_text(), re.MULTILINE)}


def test_each_promise_is_a_sentence_with_an_existing_test() -> None:
    form = "each promise in docs/contributing/promises.md is followed by `: `PATH::TEST``"
    assert len(HELD) == PROMISES.count("\n: ") > 30, form
    cut = [promise for promise, *_ in HELD if not promise.endswith(".")]
    assert cut == [], "a promise in docs/contributing/promises.md ends with a full stop"
    lost = [f"{path}::{test}" for _, path, test in HELD if test not in names_in(path)]
    assert lost == [], "docs/contributing/promises.md names tests that don't exist"


# --- docs/explanation/security.md -----------------------------------------------------------------


SECURITY = (ROOT / "docs/explanation/security.md").read_text()
MODES = re.findall(r"^\| `(/\S+)` \| (0\d{3}) \|", SECURITY, re.MULTILINE)
DOCUMENT = {"hostRouting": section(SHADOWED, watch={"enabled": True})}


@pytest.fixture
def installed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Layout]:
    """Return the layout after running ``apply`` with the test's umask."""
    layout = Layout(tmp_path)
    write_file(layout.config, json.dumps(DOCUMENT))
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


def test_the_watcher_has_the_rights_of_the_page(installed: Layout) -> None:
    (row,) = [line for line in SECURITY.splitlines() if "| `hostrouting-watch.service`" in line]
    unit = (installed.units / "hostrouting-watch.service").read_text()
    assert "CapabilityBoundingSet=CAP_NET_ADMIN\n" in unit
    assert "root with CAP_NET_ADMIN alone" in row
    for setting in re.findall(r"`(\w+=\w*)`", row):
        assert f"\n{setting}" in unit


# --- examples -------------------------------------------------------------------------------------


EXAMPLES = ROOT / "examples"

# Each example's arguments, one line of its output, and the prefix of each line on its standard
# error.
RUNS = {
    "azure_node.py": ([], "probes are rewritten on eth0", None),
    "agent.py": (["--try"], "1 routes added; verdict: ok; started kube1", "INFO "),
}
# These are tests and what they test; the backends are tested in tests/kernel/test_conformance.py.
RUN_ELSEWHERE = {
    *("test_agent.py", "traced_agent.py", "test_traced_agent.py"),
    *("ip_command_backend.py", "pyroute2_backend.py"),
}


@cache
def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*") if path.is_file()} == RUN_ELSEWHERE | set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_an_example_runs(name: str) -> None:
    arguments, line, log = RUNS[name]
    done = run_example(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert [
        each for each in done.stderr.splitlines() if log is None or not each.startswith(log)
    ] == []
    assert line in done.stdout.splitlines()


@pytest.mark.parametrize("agent", ["agent.py", "traced_agent.py"])
def test_the_agents_own_tests_pass_outside_this_project(agent: str, tmp_path: Path) -> None:
    for name in (agent, f"test_{agent}"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{agent}"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_traced_agent_has_the_backend_of_the_page() -> None:
    """So type checkers and the agent's tests see the page's code."""

    def classes(source: str) -> dict[str, str]:
        nodes = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        ]
        for node in nodes:
            if ast.get_docstring(node) is not None:
                del node.body[0]
        return {node.name: ast.unparse(node) for node in nodes if isinstance(node, ast.ClassDef)}

    page = (ROOT / "docs/howto/embed.md").read_text()
    told = classes("".join(block.text for block in blocks(page) if block.language == "python"))
    agents = classes((EXAMPLES / "traced_agent.py").read_text())
    assert agents["CountingBackend"] == told["CountingBackend"]


def test_the_agent_names_the_path_of_each_problem(tmp_path: Path) -> None:
    document = {"hostRouting": section("172.16.1.7/24", mode="LOOSE")}
    done = run_example("agent.py", str(write_file(tmp_path / "config.json", json.dumps(document))))
    assert (done.returncode, done.stdout) == (78, "")
    places = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert places == [
        "hostRouting.staticRoutes.routes[0].destination",
        "hostRouting.routeOverlap.mode",
    ]
