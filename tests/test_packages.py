"""Tests that a release has a valid description and the right contents and can be reproduced from
its sdist.
"""

from __future__ import annotations

import contextlib
import email
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from building import build

from hostrouting import __version__

# A build may take a while on a busy machine.
pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent
PAGES, FILES = (
    "https://github.com/hostrouting/hostrouting/blob/main/",
    "https://raw.githubusercontent.com/hostrouting/hostrouting/main/",
)


@pytest.fixture(scope="module")
def metadata(release: Path) -> Message:
    (wheel,) = release.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def unpacked_sdist(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (sdist,) = release.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def unpacked_deb(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (deb,) = release.glob("*.deb")
    folder = tmp_path_factory.mktemp("deb")
    subprocess.run(["dpkg-deb", "--extract", deb, folder], check=True)
    return folder


def test_the_wheel_has_the_clones_version(metadata: Message) -> None:
    assert metadata["Version"] == __version__


def test_each_link_of_the_description_works(metadata: Message) -> None:
    links = re.findall(r"\]\(([^)#]+)", str(metadata.get_payload()))
    for link in links:
        start = FILES if link.endswith(".svg") else PAGES
        assert link.startswith(start)
        assert ROOT.joinpath(link.removeprefix(start)).exists(), link
    assert len(links) > 10


def test_pyroma_finds_nothing(release: Path) -> None:
    (sdist,) = release.glob("*.tar.gz")
    done = subprocess.run(
        [sys.executable, "-m", "pyroma", "--min=10", sdist], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_lintian_finds_no_error(release: Path) -> None:
    (deb,) = release.glob("*.deb")
    done = subprocess.run(["lintian", "--fail-on=error", deb], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_sdist_has_all_files_of_the_repository(unpacked_sdist: Path) -> None:
    if not ROOT.joinpath(".git").exists():
        pytest.skip("this is no repository")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    held = {
        str(path.relative_to(unpacked_sdist))
        for path in unpacked_sdist.rglob("*")
        if path.is_file()
    }
    assert held - {"PKG-INFO"} == {name for name in listed if ROOT.joinpath(name).exists()}


def test_a_build_from_its_own_sdist_has_the_same_bytes(
    release: Path, unpacked_sdist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "build/wheels", unpacked_sdist / "build/wheels")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    monkeypatch.setenv("LC_ALL", "C")
    before = os.umask(0o077)
    try:
        build(unpacked_sdist, tmp_path)
    finally:
        os.umask(before)
    assert digests(tmp_path) == digests(release)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_bill_of_materials_names_the_debian_packages_contents(
    release: Path, unpacked_deb: Path
) -> None:
    (path,) = release.glob("*.cdx.json")
    assert (
        unpacked_deb.joinpath("usr/share/doc/hostrouting", path.name).read_bytes()
        == path.read_bytes()
    )
    bill = json.loads(path.read_text())
    parts: list[dict[str, Any]] = [bill["metadata"]["component"], *bill["components"]]
    held = {
        found["Name"].lower().replace("_", "-"): found["Version"]
        for found in metadata_in(unpacked_deb)
    }
    assert {part["name"]: part["version"] for part in parts} == held
    assert {part["licenses"][0]["expression"] for part in parts} <= ALLOWED
    rights = (
        unpacked_deb.joinpath("usr/share/doc/hostrouting/copyright").read_text().split("=" * 80)
    )
    assert [text.split(":")[0].strip() for text in rights[1:]] == [
        f"{part['name']} {part['version']}" for part in parts
    ]
    assert all("copyright" in text.lower() or "common-licenses" in text for text in rights[1:])
    (wheel,) = release.glob("*.whl")
    assert parts[0]["hashes"][0]["content"] == digests(release)[wheel.name]
    assert {need["ref"] for need in bill["dependencies"]} == {part["bom-ref"] for part in parts}


def test_another_phases_is_replaced_as_the_page_says(release: Path, tmp_path: Path) -> None:
    """Both distributions contain ``phases/__init__.py``, and the other one is installed last."""
    (wheel,) = release.glob("*.whl")
    other = tmp_path / "phases-1.0-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("phases/__init__.py", "")
        archive.writestr(
            "phases-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: phases\nVersion: 1.0\n"
        )
        archive.writestr(
            "phases-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("phases-1.0.dist-info/RECORD", "phases/__init__.py,,\n")
    python = made_environment(tmp_path / "env", sys.executable)

    def imported() -> str:
        command = (python, "-c", "import hostrouting; hostrouting.Config()")
        return subprocess.run(
            command, cwd=tmp_path, env={}, stderr=subprocess.PIPE, text=True
        ).stderr

    pip(python, *INSTALL, wheel)
    pip(python, *INSTALL, other)
    assert "pip uninstall phases" in imported()
    pip(python, "uninstall", "--yes", "phases")
    pip(python, *INSTALL, "--force-reinstall", wheel)
    assert imported() == ""


def made_environment(folder: Path, python: str) -> Path:
    """Make a virtual environment without pip, and return its Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


def pip(python: Path, *words: str | Path) -> None:
    """Run this environment's pip for another environment. The tests have no network access."""
    options = ("--python", python, "--disable-pip-version-check", "--quiet")
    command = (sys.executable, "-m", "pip", *options, *words)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


INSTALL = ("install", "--no-index", "--no-compile", "--find-links", ROOT / "build/wheels")
PYTHONS = re.findall(r"Python :: (3\.\d+)", ROOT.joinpath("pyproject.toml").read_text())
IMPORTS = """
import hostrouting, phases.testing
from hostrouting import azure, backend, report, tasks, testing
for module in (hostrouting, azure, backend, report, tasks, testing, phases, phases.testing):
    assert all(getattr(module, name) for name in module.__all__)
"""


def interpreters() -> list[str]:
    """Return the interpreter of each Python of the classifiers that this machine has."""
    found = []
    for version in PYTHONS:
        asked = (f"python{version}", "-c", "import sys; print(sys.executable)")
        with contextlib.suppress(FileNotFoundError):
            done = subprocess.run(
                asked, env=os.environ | {"PYENV_VERSION": version}, capture_output=True, text=True
            )
            found += [done.stdout.strip()] if done.returncode == 0 else []
    return found


def test_the_wheel_works_with_each_python_of_the_classifiers(release: Path, tmp_path: Path) -> None:
    """Import all public names, and run the demo. Warnings are errors."""
    there = interpreters()
    assert there
    for number, found in enumerate(there):
        python = made_environment(tmp_path / str(number), found)
        pip(python, *INSTALL, *release.glob("*.whl"))
        for words in (["-c", IMPORTS], ["-m", "hostrouting", "demo"]):
            done = subprocess.run(
                [python, "-W", "error", *words],
                cwd=tmp_path,
                env={},
                capture_output=True,
                text=True,
            )
            assert (done.returncode, done.stderr) == (0, ""), found


ALLOWED = {"MIT", "BSD-2-Clause", "MPL-2.0", "PSF-2.0", "GPL-2.0-or-later OR Apache-2.0"}


def metadata_in(tree: Path) -> list[Message]:
    return [
        email.message_from_bytes(path.read_bytes()) for path in tree.rglob("*.dist-info/METADATA")
    ]


def test_the_debian_package_has_the_tested_versions() -> None:
    carried = re.findall(
        r"^(\S+==\S+) --hash", ROOT.joinpath("deploy/debian/requirements.txt").read_text(), re.M
    )
    tested = re.findall(r"^(\S+==[^\s;]+)", ROOT.joinpath("constraints.txt").read_text(), re.M)
    assert {*carried} - {*tested} == set()
    assert carried


@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("bash-completion/completions/hostrouting", "#"),
        ("zsh/vendor-completions/_hostrouting", "#compdef hostrouting\n"),
        ("fish/vendor_completions.d/hostrouting.fish", "#"),
    ],
)
def test_the_debian_package_has_completions_for_shells(
    unpacked_deb: Path, path: str, start: str
) -> None:
    text = unpacked_deb.joinpath("usr/share", path).read_text()
    assert text.startswith(start)
    assert "azure-vnet" in text


def test_the_debian_package_has_man_pages(unpacked_deb: Path) -> None:
    pages = {
        path.name: gzip.decompress(path.read_bytes()).decode()
        for path in unpacked_deb.rglob("*.[15].gz")
    }
    assert pages.keys() == {"hostrouting.1.gz", "hostrouting-config.5.gz"}
    assert ".TH" in pages["hostrouting.1.gz"]
    assert "azure\\-vnet" in pages["hostrouting.1.gz"]
