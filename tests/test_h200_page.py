"""docs/howto/h200.md and its pictures are what the tool prints today, and lead somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs/howto"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    program = [sys.executable, str(ROOT / "docs/make_h200.py"), str(folder)]
    subprocess.run(program, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    return folder


def test_the_page_and_its_pictures_are_what_the_tool_prints(made: Path) -> None:
    names = {path.name for path in made.iterdir()}
    assert names == {path.name for path in PAGES.glob("h200*")}
    for name in names:
        message = f"docs/howto/{name} is stale: ./run python docs/make_h200.py"
        assert (made / name).read_text() == (PAGES / name).read_text(), message


def test_the_pictures_are_on_the_page_and_are_documents(made: Path) -> None:
    page = (made / "h200.md").read_text()
    for picture in made.glob("*.svg"):
        assert f"]({picture.name})" in page
        ElementTree.fromstring(picture.read_text())
