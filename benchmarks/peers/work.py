"""A peer's work on a booted machine: install routes, change nothing, change ten, remove all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.machines import find_tests, install_package
from benchmarks.peers.programs import ADDRESS, GATEWAY, MOVED, Peer, Wanted, many

if TYPE_CHECKING:
    from boot.rig import Machine

_AGENT = "/root/agent.py"
_FEW = 10
_LIMIT_SECONDS = 120
_REPAIR_SECONDS = 30
_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 0.7

Facts = dict[str, Any]
"""Observations, as values of JSON."""


class PeerError(Exception):
    """Raised if a peer, or the machine on which it runs, fails."""


class Done(NamedTuple):
    """The end of a command.

    Args:
        status: its exit code.
        output: what it printed.
        journal: the journal's new lines.
    """

    status: int
    output: str
    journal: str

    def facts(self, name: str, other: str) -> Facts:
        """Return the exit code, and where a problem is reported: output, journal or nowhere.

        Args:
            name: a part of the report.
            other: a part of a text that lists everything, such as all routes, and so reports
                nothing.
        """
        places = {"the command": self.output, "the journal": self.journal}
        said = [place for place, text in places.items() if name in text and other not in text]
        return {"exit": self.status, "said": said[0] if said else ""}


class Node(NamedTuple):
    """A booted machine on which a peer runs, without any route yet."""

    peer: Peer
    machine: Machine

    def write(self, wanted: Wanted, *, leased: bool = False) -> None:
        """Write the peer's file."""
        self.machine.write(self.peer.path, self.peer.text(wanted, leased), mode=self.peer.mode)

    def run(self, *argv: str) -> Done:
        """Run a command, for a minute at most, and return its end, with what the journal got."""
        before = len(self.machine.journal())
        done = self.machine.run("timeout", "60", *argv, check=False)
        time.sleep(_SETTLE_SECONDS)
        return Done(done.returncode, done.stdout + done.stderr, self.machine.journal()[before:])

    def apply(self, wanted: Wanted, *, leased: bool = False) -> Done:
        """Write the peer's file, make the peer read it, and wait until routes stop changing."""
        self.write(wanted, leased=leased)
        done = self.run(*self.peer.command)
        shown = None
        while shown != (shown := self.routes("11.")):
            time.sleep(_SETTLE_SECONDS)
        return done

    def version(self) -> str:
        """Return the version of the peer's package, or an empty string for hostrouting."""
        query = "dpkg-query", "-W", "-f", "${Version}"
        return self.machine.run(*query, self.peer.package).stdout if self.peer.package else ""

    def routes(self, prefix: str) -> list[str]:
        """Return the kernel's routes to destinations that start with a prefix."""
        lines = self.machine.ip("-4", "route", "show", "table", "main").splitlines()
        return [" ".join(line.split()) for line in lines if line.startswith(prefix)]

    def follow(self, wanted: Wanted, *, kill_after: int = 0) -> Facts:
        """Run the peer's command, and return the observations of ``agent.follow``."""
        task = {
            "wanted": list(wanted),
            "argv": self.peer.command,
            "unit": self.peer.unit,
            "limit": _LIMIT_SECONDS,
            "kill_after": kill_after,
            "patience": _REPAIR_SECONDS,
        }
        facts: Facts = json.loads(
            self.machine.run("python3", _AGENT, input=json.dumps(task)).stdout
        )
        return facts

    def seconds_until(self, prefix: str, count: int, limit: float, via: str = "") -> float | None:
        """Wait until there are so many routes, and return for how long, or None after the limit."""
        start = time.monotonic()
        while (now := time.monotonic()) < start + limit:
            if sum(via in route for route in self.routes(prefix)) == count:
                return round(now - start, 2)
            time.sleep(_POLL_SECONDS)
        return None


@contextmanager
def booted(peer: Peer) -> Iterator[Node]:
    """Boot a machine with a peer, eth0, a default route, and gateways behind eth0.

    Raises:
        PeerError: the machine or its tree can't be made, or something fails on it.
    """
    find_tests()
    from boot.rig import Machine, MachineError
    from boot.trees import CannotBuildError, find_or_build

    try:
        with Machine(find_or_build("trixie", *peer.more)) as machine:
            yield _prepared(peer, machine)
    except (MachineError, CannotBuildError) as error:
        first, *rest = str(error).strip().replace("|", "/").splitlines()
        raise PeerError(f"{first} {rest[-1] if rest else ''}"[:300].strip()) from error


def _prepared(peer: Peer, machine: Machine) -> Node:
    node = Node(peer, machine)
    if peer.owns_link:
        machine.add_nic("eth0")
        machine.fabric("ip", "address", "add", f"{GATEWAY}/24", "dev", "eth0")
    else:
        machine.add_nic("eth0", ADDRESS, gateway=GATEWAY)
    machine.fabric("ip", "address", "add", f"{MOVED}/24", "dev", "eth0")
    for path, text in peer.files.items():
        machine.write(path, text, mode=0o755)
    if not peer.package:
        install_package(machine)
    elif not peer.more:
        machine.systemctl("enable", peer.unit)
    machine.write(_AGENT, Path(__file__).with_name("agent.py").read_text())
    node.write({})
    machine.boot()
    machine.wait_until(
        lambda: bool(node.routes("default") and node.routes("10.1.0.0/24")), "a default route"
    )
    return node


def figures(node: Node, sizes: Sequence[int]) -> dict[str, Facts]:
    """Return the observations of each step, under the number of routes and the step's name."""
    found = {}
    for size in sizes:
        routes = many(size)
        changed = dict([*routes.items()][:-_FEW]) | many(_FEW, size)
        steps: dict[str, Wanted] = {
            "install": routes,
            "nothing": routes,
            "change": changed,
            "remove": {},
        }
        for step, wanted in steps.items():
            node.write(wanted)
            found[f"{size} {step}"] = node.follow(wanted)
    return found
