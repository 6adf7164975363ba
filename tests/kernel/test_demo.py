"""Test that the demo shows every step, on the real kernel or in memory, and names the kernel it
used.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from needs import NO_BROADCAST, needs_linux

from hostrouting import HostRoutingError
from hostrouting.cli import demo

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "demo.svg"

# A limit of zero namespaces has the same effect as a seccomp filter, without needing libseccomp.
NO_NAMESPACES = "echo 0 > /proc/sys/user/max_net_namespaces && exec"


# An address of each family's shadowed network.
ADDRESSES = ("172.16.1.1", "fd00:172:16::1")


# Without namespaces, there is nothing to connect with.
CONNECTIONS = [
    ("✗", "the API server 172.16.1.1 doesn't answer"),
    ("✓", "the neighbour 172.16.5.5 on InfiniBand answers, and is answered"),
    ("✓", "the API server 172.16.1.1 answers"),
    ("✓", "the neighbour 172.16.5.5 on InfiniBand answers, and is answered"),
]


def check_story(output: str, families: int = 2, *, is_real: bool = True) -> None:
    """Check that each step is printed, for IPv4 and, with two families, for IPv6."""
    told = re.findall(r"OVERLAP|added|unchanged|removed", output)
    # Of the side tables' routes, and of the rules, the first and the last are shown.
    changes = 2 * families + 4
    assert told == [
        *["OVERLAP"] * families,
        *(word for word in ("added", "unchanged", "removed") for _ in range(changes)),
    ]
    answers = re.findall(r"^ *(\S+) +by (\S+)  ", output, re.MULTILINE)
    assert answers == [
        (address, dev) for dev in ("ib0", "eth0") for address in ADDRESSES[:families]
    ]
    of_infiniband = re.findall(r"from 172.16.0.10  by (\S+)  172.16.0.0/16 ", output)
    assert of_infiniband == ["ib0", "ib0"]
    connections = re.findall("^ *([✗✓]) (the (?:API server|neighbour) .*)$", output, re.MULTILINE)
    assert connections == (CONNECTIONS if is_real else [])
    assert (
        output.index("by ib0")
        < output.index("OVERLAP")
        < output.index("added")
        < output.index("by eth0  ")
    )
    assert output.rstrip().endswith("✓ every route and rule is as it was before")


def shown(*argv: str | Path, **more: Any) -> str:
    """Return what a program prints that ends well and without complaints."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        argv, capture_output=True, text=True, check=False, **more
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.kernel
def test_the_demo_runs_on_the_real_kernel_in_any_folder(tmp_path: Path) -> None:
    """The installed command doesn't search the current directory."""
    command = Path(sys.executable).with_name("hostrouting")
    if not command.exists():
        pytest.skip("hostrouting isn't installed beside this Python")
    for name in ("hostrouting/__init__.py", "json.py", "phases.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('of the current directory')")
    story = shown(command, "demo", cwd=tmp_path)
    version = ".".join(os.uname().release.split(".")[:2])
    assert story.splitlines()[0] == f"kernel: Linux {version} (network namespace)"
    check_story(story)


# Import first and change the user afterwards, because an unprivileged user may be unable to read
# root's Python. After the change, /proc/self belongs to root until the process marks itself as
# dumpable (PR_SET_DUMPABLE, prctl(2)).
AS_NOBODY = """
import ctypes, importlib.readers, importlib.resources, os, sys
import hostrouting.cli.demo, pyroute2
importlib.resources.files("hostrouting")
if open("/proc/self/uid_map").read().split() == ["0", "0", "4294967295"] and os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
os.environ["TMPDIR"] = sys.argv.pop()
sys.exit(hostrouting.cli.demo.main())
"""


@pytest.mark.kernel
def test_the_demo_needs_no_root() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        for package in ("hostrouting", "phases"):
            shutil.copytree(ROOT / package, Path(folder, package))
        # This user couldn't write coverage's data.
        environment = os.environ | {"PYTHONPATH": folder, "COVERAGE_PROCESS_CONFIG": ""}
        story = shown(sys.executable, "-c", AS_NOBODY, folder, env=environment)
    assert story.splitlines()[0].endswith("(network namespace)")
    check_story(story)


@pytest.mark.kernel
def test_without_namespaces_the_demo_runs_in_memory() -> None:
    """The test runs in its own user namespace because the limit applies to that namespace and its
    descendants.
    """
    program = f"{NO_NAMESPACES} {sys.executable} -m hostrouting demo"
    story = shown("unshare", "--user", "--map-root-user", "bash", "-c", program)
    assert re.match(r"kernel: in memory \(can't make a network namespace: .+\)\n", story)
    check_story(story, families=1, is_real=False)


# In a network namespace of its own, each process sees its own settings here.
WITHOUT_IPV6 = """
import sys
from pathlib import Path
from hostrouting.cli import demo

enter = demo.enter_namespace
def enter_without_ipv6():
    enter()
    Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")

demo.enter_namespace = enter_without_ipv6
sys.exit(demo.main())
"""


@pytest.mark.kernel
def test_without_ipv6_the_demo_shows_ipv4() -> None:
    story = shown(sys.executable, "-c", WITHOUT_IPV6)
    first, second, *_ = story.splitlines()
    assert first.endswith("(network namespace)")
    assert second.startswith("without IPv6: can't add the address fd00:10:1::4/64 to eth0: ")
    check_story(story, families=1)


def without_kernel(picture: str) -> list[tuple[str, str]]:
    """Return the SVG's text elements with their positions, except for the line that names the
    kernel.
    """
    texts = ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    said = [(text.attrib["y"], "".join(text.itertext())) for text in texts]
    assert said[1][1].startswith("kernel:\xa0Linux")
    return said[2:]


@pytest.mark.kernel
def test_the_readmes_picture_is_the_demos_drawing() -> None:
    """To regenerate the picture: ``./run python docs/make_demo.py > docs/demo.svg``."""
    needs_linux(*NO_BROADCAST)
    drawn = shown(
        sys.executable, ROOT / "docs" / "make_demo.py", env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert without_kernel(drawn) == without_kernel(PICTURE.read_text())


def test_a_demo_that_goes_wrong_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(width: int | None) -> Iterator[str]:
        yield "a line"
        raise HostRoutingError("the table isn't what it was before")

    monkeypatch.setattr(demo, "story", fail)
    assert demo.main() == 1
    assert capsys.readouterr().err == "hostrouting demo: the table isn't what it was before\n"
