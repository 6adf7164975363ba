"""Test the watcher as a separate process on a real kernel, with floods, overruns, signals and link
changes.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from itertools import count
from operator import or_
from pathlib import Path
from typing import Any

import pytest
from nightly import by_day
from node import run_ip, run_ip6, tool
from wanted import ROUTE, section

from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
SECTION = section(
    ROUTE,
    cidrs=["172.16.1.0/24", "192.168.0.0/16"],
    mode="WARN",
    watch={"textfile": "/var/metrics/hostrouting.prom"},
)
# Everything in hostrouting is real here except for the layout and systemd. An argument can inject a
# fault.
PROGRAM = """
import os, signal, socket, sys
from hostrouting import Host, Layout, cli
from hostrouting.backend import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.rtnetlink.conversation import Listener
from hostrouting.testing import FakeSystemd

root, spoiled = sys.argv[1:]
if spoiled == "buffer":
    init = Listener.__init__
    def tiny(self, *inside):
        init(self, *inside)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    Listener.__init__ = tiny
elif spoiled:
    sync, count = os.fsync, 0
    def die(descriptor):
        global count
        count += 1
        if count == int(spoiled):
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)
    os.fsync = die
host = Host(NetlinkBackend(), FakeSystemd(), Layout(root), NetlinkBackend6())
sys.exit(cli.main(["watch", f"{root}/config.json"], host=host))
"""
OURS = "172.16.1.0/24 via 10.1.0.1 dev eth0 proto 217"
METRICS = re.compile(
    r"(# (HELP|TYPE) .*\n|hostrouting_\S+ \S+\n)*hostrouting_routes_repaired_total\S+ \d+\n"
)
HOSTILE_NAMES = (b'a"b\\c', b"\x1b[31mR", b"\xff\xfe", b"$(id)", b'{x="y"}')
PATIENCE_SECONDS = 30.0


class Watcher:
    """A running ``hostrouting watch`` process and the messages that it sends to systemd."""

    def __init__(self, root: Path, spoiled: str = "", packages: Path | None = None) -> None:
        self.root = root
        self.textfile = root / "var/metrics/hostrouting.prom"
        self.configure()
        self.heard: list[str] = []
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"@hostrouting-test-{os.getpid()}-{id(self)}"
        self._notes.bind("\0" + name[1:])
        environment = os.environ | {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"}
        environment.pop("JOURNAL_STREAM", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root, spoiled],
            env=environment
            | {"PYTHONPATH": os.pathsep.join([*([str(packages)] if packages else []), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
        )

    def configure(self, **changes: Any) -> None:
        """Write the config with other keys of its section."""
        (self.root / "config.json").write_text(json.dumps({"hostRouting": SECTION | changes}))

    def hear(self, line: str) -> None:
        """Wait until the watcher has sent the given line."""
        self.wait_until(lambda: line in self.heard, line)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition, testing it periodically and after each message to systemd."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what}; heard {self.heard}"
            assert self.process.poll() is None, self.process.communicate()
            if select.select([self._notes], [], [], 0.02)[0]:
                self.heard.append(self._notes.recv(65536).decode())

    def last_word(self) -> str:
        """Return the last line that the watcher has sent so far."""
        while select.select([self._notes], [], [], 0)[0]:
            self.heard.append(self._notes.recv(65536).decode())
        return self.heard[-1]

    def ends_before(self, line: str) -> bool:
        """Return whether the watcher exits without sending the given line."""
        while line not in self.heard and self.process.poll() is None:
            if select.select([self._notes], [], [], 0.02)[0]:
                self.heard.append(self._notes.recv(65536).decode())
        return line not in self.heard

    def metric(self, name: str) -> float:
        match = re.search(rf"^{re.escape(name)} (.*)$", self.textfile.read_text(), re.MULTILINE)
        assert match is not None, name
        return float(match[1])

    def memory(self) -> int:
        """Return the watcher's peak memory usage in KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0])

    def end(self) -> tuple[int, str]:
        self.process.terminate()
        said, complaints = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert complaints == ""
        return self.process.returncode, said

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._notes.close()


@pytest.fixture
def watch(node: NamespaceKernel, tmp_path: Path) -> Iterator[Callable[..., Watcher]]:
    made: list[Watcher] = []

    def start(spoiled: str = "", packages: Path | None = None) -> Watcher:
        made.append(Watcher(tmp_path, spoiled, packages))
        return made[-1]

    yield start
    for watcher in made:
        watcher.close()


def is_there() -> bool:
    return OURS in " ".join(tool("ip", "-N", "route", "show", "172.16.1.0/24").split())


@pytest.mark.parametrize(
    "spoiled",
    ["buffer", ""][: by_day(1, by_night=2)],
    ids=lambda word: f"a {'tiny' if word else 'usual'} buffer",
)
def test_a_flood_takes_few_checks_and_little_memory(
    watch: Callable[..., Watcher], spoiled: str
) -> None:
    watcher = watch(spoiled)
    watcher.hear("READY=1")
    before, memory = watcher.metric("hostrouting_checks_total"), watcher.memory()
    flood = [
        f"route {verb} 20.{n >> 8}.{n & 255}.0/24 dev ib0"
        for verb in ("add", "del")
        for n in range(5000)
    ]
    run_ip(*flood, "route del 172.16.1.0/24", "addr add 192.168.7.1/16 dev ib0")
    watcher.wait_until(
        lambda: is_there() and (watcher.root / "run/aks-flex-node/route-overlap.detected").exists(),
        "the end state",
    )
    watcher.wait_until(
        lambda: watcher.metric('hostrouting_cidr_verdict{cidr="192.168.0.0/16",verdict="ok"}') == 0,
        "",
    )
    assert watcher.metric("hostrouting_checks_total") - before <= 20
    assert watcher.memory() - memory < 32 * 1024
    assert watcher.end()[0] == 0


def test_updates_reach_the_metrics_without_an_event(watch: Callable[..., Watcher]) -> None:
    """The kernel's notifications cover neither update, and the next periodic check is a minute
    away.
    """
    watcher = watch()
    watcher.hear("READY=1")
    assert watcher.metric("hostrouting_gate_off") == 0
    watcher.configure(routeOverlap={"expectedCidrs": ["10.96.0.0/12"]})
    watcher.wait_until(
        lambda: 'cidr="10.96.0.0/12"' in watcher.textfile.read_text(), "the new CIDR is judged"
    )
    off = watcher.root / "etc/hostrouting/gate.off"
    off.parent.mkdir(parents=True)
    off.touch()
    watcher.wait_until(
        lambda: watcher.metric("hostrouting_gate_off") == 1, "the metrics tell of the gate"
    )


def test_hostile_names_and_a_vanished_config_are_survived(watch: Callable[..., Watcher]) -> None:
    for number, name in enumerate(HOSTILE_NAMES):
        device = os.fsdecode(name)
        tool("ip", "link", "add", "name", device, "type", "veth", "peer", "name", f"far{number}")
        tool("ip", "link", "set", "dev", device, "up")
        tool("ip", "route", "add", f"192.168.{number}.0/24", "dev", device)
    watcher = watch()
    watcher.hear("READY=1")
    assert watcher.metric('hostrouting_failures{kind="OVERLAP"}') == len(HOSTILE_NAMES)
    assert METRICS.fullmatch(watcher.textfile.read_text())
    config = watcher.root / "config.json"
    config.unlink()
    os.mkfifo(config)
    run_ip("route add 10.77.0.0/16 dev eth0")
    watcher.wait_until(
        lambda: any("not a regular file" in line for line in watcher.heard), "the problem"
    )
    code, said = watcher.end()
    assert code == 0
    lines = said.splitlines()
    assert sum(line.startswith("OVERLAP: ") for line in lines) == len(HOSTILE_NAMES)
    assert all(line.isprintable() for line in lines), lines
    assert lines[-1].startswith("stopped by SIGTERM")


def test_it_survives_an_upgrade_that_removes_its_modules(
    watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    for name in ("hostrouting", "phases"):
        shutil.copytree(ROOT / name, packages / name)
    watcher = watch(packages=packages)
    watcher.hear("READY=1")
    watcher.configure(uplinks=["eth0"])  # without it, the check asks where that route should lead
    packages.rename(tmp_path / "gone")
    run_ip("route add 192.168.7.0/24 dev ib0")
    watcher.wait_until(
        lambda: any("STATUS=overlap" in line for line in watcher.heard), "the failure"
    )
    code, said = watcher.end()
    assert code == 0
    assert "fix: add to hostRouting.staticRoutes.routes: " in said
    assert said.splitlines()[-1] == "stopped by SIGTERM; the routes stay as they are"
    assert watcher.last_word() == "STOPPING=1"
    assert {
        "WATCHDOG=1",
        "STATUS=ok: every expected CIDR leaves through eth0; static routes in place: 1",
    } <= {*watcher.heard}
    assert is_there()


def test_killed_in_any_write_it_leaves_no_torn_file(watch: Callable[..., Watcher]) -> None:
    for writes in count(1, by_day(4, by_night=1)):
        watcher = watch(str(writes))
        if not watcher.ends_before("READY=1"):
            watcher.end()
            break
        assert watcher.process.returncode == -signal.SIGKILL
        run = watcher.root / "run/aks-flex-node"
        if (report := run / "route-overlap.json").exists():
            assert json.loads(report.read_text())["schema"] == 1
        assert not watcher.textfile.exists() or METRICS.fullmatch(watcher.textfile.read_text())
        assert len(list(run.glob("route-overlap.[od]*"))) <= 1
    assert writes > 3
    assert list(watcher.root.rglob(".*hostrouting-*")) == []


# --- IPv6 -----------------------------------------------------------------------------------------

_IPV6_GROUPS = 0x1040500  # linux/rtnetlink.h: netconf, rules, routes and addresses


def heard_groups(pid: int) -> int:
    """Return the groups of netlink to which a process listens, as one number."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed by now
            inodes.add(str(descriptor.readlink()))
    rows = [row.split() for row in Path(f"/proc/{pid}/net/netlink").read_text().splitlines()[1:]]
    return reduce(or_, (int(row[3], 16) for row in rows if f"socket:[{row[9]}]" in inodes), 0)


def is_there6() -> bool:
    return "via 2001:db8:1::1 dev eth0 proto 217" in tool(
        "ip", "-6", "-N", "route", "show", "fd00:10::/48"
    )


def test_ipv6_is_heard_and_repaired_only_if_it_is_expected(watch: Callable[..., Watcher]) -> None:
    run_ip6(
        "address add 2001:db8:1::4/64 dev eth0 nodad",
        "route add default via 2001:db8:1::1 dev eth0",
    )
    watcher = watch()
    watcher.hear("READY=1")
    markers = watcher.root / "run/aks-flex-node"
    # The check that it has just made may still have its own socket.
    watcher.wait_until(
        lambda: heard_groups(watcher.process.pid) & _IPV6_GROUPS == 0, "IPv6 isn't heard"
    )
    expected = ["172.16.1.0/24", "fd00:10::/48"]
    watcher.configure(**section(*expected, cidrs=expected, mode="WARN"))
    watcher.wait_until((markers / "route-overlap.ok").exists, "the new config is used")
    watcher.wait_until(
        lambda: heard_groups(watcher.process.pid) & _IPV6_GROUPS == _IPV6_GROUPS, "IPv6 is heard"
    )
    watcher.wait_until(is_there6, "the route is added")
    run_ip6("route del fd00:10::/48")
    watcher.wait_until(is_there6, "the route is restored")
    run_ip6("address add fd00:10:0:7::4/64 dev ib0 nodad")
    detected = markers / "route-overlap.detected"
    shadow = (
        "OVERLAP: expected CIDR fd00:10::/48 (probe fd00:10:0:7::) routes via ib0, expected eth0"
    )
    # IPv6 adds an address's entry in table local from a work queue. Until then, the verdict is
    # unknown.
    watcher.wait_until(
        lambda: detected.exists() and shadow in detected.read_text(), "the shadow is found"
    )
    assert len(detected.read_text().splitlines()) == 1
    run_ip("route del default")
    reasons = ["no-default-route: IPv6", "no-default-route"]
    watcher.wait_until(
        lambda: detected.read_text().split("\n")[0] in reasons,
        "IPv4 is heard",
    )


def test_rules_and_side_tables_are_back_within_a_second(watch: Callable[..., Watcher]) -> None:
    """The kernel reports no lost route of a side table when a link goes down."""
    watcher = watch()
    static = SECTION["staticRoutes"]
    rules = {"rules": [{"to": "10.244.0.0/16", "priority": 5269}], "keep": ["ib*"]}
    watcher.configure(staticRoutes=static | rules)
    watcher.hear("READY=1")

    def ours() -> tuple[int, int]:
        listed = tool("ip", "rule", "show"), tool("ip", "route", "show", "table", "all")
        return listed[0].count("proto 217"), listed[1].count("table 2170000 proto 217")

    watcher.wait_until(lambda: ours() == (3, 1), "rules")
    for loss in (
        "ip rule flush proto 217",
        "ip link set ib0 down\nip link set ib0 up",
        "ip addr flush dev ib0\nip addr add 172.16.0.10/16 dev ib0",
    ):
        run_ip(loss)
        begun = time.monotonic()
        watcher.wait_until(lambda: ours() == (3, 1), loss)
        assert time.monotonic() - begun < 5
    assert watcher.end()[0] == 0
