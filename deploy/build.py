"""Build the wheel, the sdist, the SBOM and the Debian package of a release reproducibly.

    python deploy/build.py [FOLDER]         # dist by default

The Debian package isn't built with debhelper, which computes dependencies for a single suite and
whose output differs between suites. Our package contains its dependencies, and is the same for
every release of Debian and Ubuntu. ``debian/`` contains the same files as in other Debian packages.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
import zipfile
from datetime import datetime, timezone
from email.parser import BytesParser
from email.utils import format_datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[1]
DEBIAN = ROOT / "deploy/debian"
CARRIED = DEBIAN / "requirements.txt"
# Downloaded wheels are kept here, so that a second build needs no network.
WHEELS = ROOT / "build/wheels"

HOME = Path("usr/lib/hostrouting")
DOC = Path("usr/share/doc/hostrouting")
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/hostrouting",
    "zsh": "usr/share/zsh/vendor-completions/_hostrouting",
    "fish": "usr/share/fish/vendor_completions.d/hostrouting.fish",
}
# A virtual environment has a folder for each release of Python. Our files work with all of these
# releases.
PYTHON_MINORS = range(10, 20)
COMMON_LICENSES = {"Apache-2.0": "Apache-2.0", "GPL-2.0": "GPL-2", "MPL-2.0": "MPL-2.0"}


class Wheel:
    """A pure Python wheel."""

    def __init__(self, path: Path) -> None:
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self.archive = zipfile.ZipFile(path)
        self.metadata = self._read_metadata()
        self.name = canonicalize_name(self.metadata["Name"])
        self.version = self.metadata["Version"]
        self.purl = f"pkg:pypi/{self.name}@{self.version}"
        self.needs = {
            canonicalize_name(need.name)
            for need in map(Requirement, self.metadata.get_all("Requires-Dist", []))
            if "extra ==" not in str(need.marker)
        }

    def _read_metadata(self) -> Message:
        (name,) = (name for name in self.archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(self.archive.read(name), headersonly=True)

    @property
    def license(self) -> str:
        """Return the license as an SPDX expression."""
        classifiers = [
            word
            for word in self.metadata.get_all("Classifier", [])
            if word.startswith("License :: ")
        ]
        older = [word.rpartition(" :: ")[2].removesuffix(" License") for word in classifiers]
        return str(
            self.metadata["License-Expression"] or self.metadata["License"] or " AND ".join(older)
        )

    @property
    def license_texts(self) -> list[str]:
        """Return the wheel's license texts, or the paths of licenses that Debian contains."""
        names = [
            name
            for name in self.archive.namelist()
            if re.search(r"\.dist-info/(licenses/.|LICENSE$)", name)
        ]
        own = [
            name for name in sorted(names) if not any(common in name for common in COMMON_LICENSES)
        ]
        there = [
            f"/usr/share/common-licenses/{COMMON_LICENSES[word]}"
            for word in COMMON_LICENSES
            if word in self.license
        ]
        return [*(self.archive.read(name).decode().strip() for name in own), *there]


def main() -> None:
    """Build all files of the release."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    epoch = os.environ.setdefault("SOURCE_DATE_EPOCH", time_of_last_change())
    when = datetime.fromtimestamp(int(epoch), timezone.utc)
    carried = carried_wheels()
    with TemporaryDirectory() as folder:
        made, tree = Path(folder, "made"), Path(folder, "tree")
        run(sys.executable, "-m", "hatchling", "build", "-d", made)
        own = Wheel(next(made.glob("*.whl")))
        sbom = made / f"hostrouting-{own.version}.cdx.json"
        sbom.write_text(bill_of_materials(own, carried, when))
        fill(tree, own, carried, sbom, when)
        deb = made / f"hostrouting_{debian_version(own)}_all.deb"
        os.environ["DPKG_DEB_THREADS_MAX"] = "1"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, deb)
        for path in sorted(made.iterdir()):
            print(shutil.move(path, out / path.name))


def run(*argv: str | Path) -> str:
    """Run a program in the root folder of the project, and return its output."""
    return subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def time_of_last_change() -> str:
    """Return the time of the last commit or, without a repository, of the sdist.

    All files get that time.
    """
    if ROOT.joinpath(".git").exists():
        return run("git", "log", "-1", "--format=%ct").strip()
    return f"{ROOT.joinpath('PKG-INFO').stat().st_mtime:.0f}"


def carried_wheels() -> list[Wheel]:
    """Return the package's wheels in the order of the list, and download missing ones."""
    hashes = re.findall(r"--hash=sha256:(\w+)$", CARRIED.read_text(), re.MULTILINE)
    if not {*hashes} <= wheels_by_hash().keys():
        oldest = [
            "--python-version=3.10",
            "--implementation=py",
            "--abi=none",
            "--platform=any",
            "--only-binary=:all:",
        ]
        run(
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            *oldest,
            "-r",
            CARRIED,
            "-d",
            WHEELS,
        )
    there = wheels_by_hash()
    return [there[sha256] for sha256 in hashes]


def wheels_by_hash() -> dict[str, Wheel]:
    """Return all wheels that were downloaded, by their hashes."""
    return {wheel.sha256: wheel for wheel in map(Wheel, WHEELS.glob("*.whl"))}


def bill_of_materials(own: Wheel, carried: list[Wheel], when: datetime) -> str:
    """Return the contents of the package as a CycloneDX document."""
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(
            uuid.NAMESPACE_URL, " ".join(wheel.sha256 for wheel in (own, *carried))
        ).urn,
        "version": 1,
        "metadata": {"timestamp": when.isoformat(), "component": component(own, "application")},
        "components": [component(wheel, "library") for wheel in carried],
        "dependencies": [
            {
                "ref": wheel.purl,
                "dependsOn": [other.purl for other in carried if other.name in wheel.needs],
            }
            for wheel in (own, *carried)
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def component(wheel: Wheel, kind: str) -> dict[str, Any]:
    """Return the CycloneDX component of a wheel."""
    return {
        "type": kind,
        "bom-ref": wheel.purl,
        "name": wheel.name,
        "version": wheel.version,
        "purl": wheel.purl,
        "licenses": [{"expression": wheel.license}],
        "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
    }


def fill(tree: Path, own: Wheel, carried: list[Wheel], sbom: Path, when: datetime) -> None:
    """Write the contents of the Debian package into a folder."""
    packages = tree / HOME / "lib/python3/site-packages"
    for wheel in (own, *carried):
        wheel.archive.extractall(packages)
    for minor in PYTHON_MINORS:
        tree.joinpath(HOME, f"lib/python3.{minor}").symlink_to("python3")
    put(tree / HOME / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    tree.joinpath(HOME, "bin").mkdir()
    tree.joinpath(HOME, "bin/python3").symlink_to("../../../bin/python3")
    put(tree / "usr/bin/hostrouting", read("hostrouting"), 0o755)
    for shell, path in COMPLETIONS.items():
        put(tree / path, run(sys.executable, "-m", "hostrouting", "completion", shell))
    for page in manual(tree.with_name("manual")):
        put(tree / f"usr/share/man/man{page.suffix[1:]}" / f"{page.name}.gz", page.read_text())
    put(tree / "usr/share/python3/runtime.d/hostrouting.rtupdate", read("rtupdate"), 0o755)
    put(tree / "usr/share/lintian/overrides/hostrouting", read("lintian-overrides"))
    put(tree / DOC / sbom.name, sbom.read_text())
    put(tree / DOC / "copyright", copyright_text(own, carried))
    put(tree / DOC / "changelog.gz", ROOT.joinpath("CHANGELOG.md").read_text())
    put(tree / DOC / "changelog.Debian.gz", changelog(own, when))
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    sums = (
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n"
        for path in files
    )
    put(tree / "DEBIAN/md5sums", "".join(sums))
    size = sum(-(-path.lstat().st_size // 1024) for path in tree.rglob("*"))
    put(
        tree / "DEBIAN/control",
        read("control").replace("@VERSION@", debian_version(own)).replace("@SIZE@", str(size)),
    )
    for script in ("postinst", "prerm", "postrm"):
        put(tree / "DEBIAN" / script, read(script), 0o755)


def manual(folder: Path) -> list[Path]:
    """Build the man pages in a folder, and return their paths."""
    run(sys.executable, "-m", "sphinx", "-q", "-b", "man", "-d", folder / "read", "docs", folder)
    return sorted(folder.glob("*.[1-8]"))


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, and compress it if its name ends in ``.gz``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    path.chmod(mode)


def read(name: str) -> str:
    """Return the text of a file in ``debian/``."""
    return DEBIAN.joinpath(name).read_text()


def debian_version(own: Wheel) -> str:
    """Return the Debian version, whose pre-releases (``0.2.0rc1``) sort before releases."""
    return re.sub(r"(?=(a|b|rc|\.dev)\d+$)", "~", own.version) + "-1"


def copyright_text(own: Wheel, carried: list[Wheel]) -> str:
    """Return the copyright file, with each package, its license and the license text."""
    (home,) = re.findall(r"^Homepage: (.*)$", read("control"), re.MULTILINE)
    head = (
        f"hostrouting, from {home}\n"
        "With the Python packages that it needs, as their authors publish them on PyPI.\n"
    )
    parts = [
        f"{'=' * 80}\n{wheel.name} {wheel.version}: {wheel.license}\n\n"
        + "\n\n".join(wheel.license_texts)
        + "\n"
        for wheel in (own, *carried)
    ]
    return "\n".join([head, *parts])


def changelog(own: Wheel, when: datetime) -> str:
    """Return a changelog from which Debian's tools get the version."""
    maintainer = re.findall(r"^Maintainer: (.*)$", read("control"), re.MULTILINE)[0]
    return (
        f"hostrouting ({debian_version(own)}) unstable; urgency=medium\n\n"
        f"  * As in changelog.gz.\n\n -- {maintainer}  {format_datetime(when)}\n"
    )


if __name__ == "__main__":
    main()
