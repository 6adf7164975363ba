"""Tests that the code blocks in the README and the docs run and that links work."""

from __future__ import annotations

import re
import runpy
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from pages import PAGES, ROOT, Node, blocks

from hostrouting import ConfigError, azure
from hostrouting.doctor.examine import CHECKS
from hostrouting.overlap.findings import FindingKind, NoteKind

if TYPE_CHECKING:
    from pathlib import Path

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
