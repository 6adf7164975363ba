"""Connect to and from an H200 by TCP: a host of the cluster, and a host on InfiniBand's network.

Both are real hosts in network namespaces of their own. The node's InfiniBand interfaces share one
network, as do those of Azure's machines.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import attrs
import pytest
from nightly import IS_NIGHTLY
from node import on_linux, run_ip, tool, until
from scripts import Sandbox
from wanted import section

import phases
from hostrouting import Config, Configure, Host, Layout, RemoveHostRouting
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.unshare import Namespace
from hostrouting.testing import FakeSystemd
from hostrouting.watch.loop import WatchHostRouting
from phases import Cancelled, CancelScope

pytestmark = pytest.mark.kernel

OWN, ROUTER = "10.1.0.4", "10.1.0.1"
IN_CLUSTER = "172.16.9.9"
ON_INFINIBAND = "172.16.5.5"
SHARED = "172.16.0.0/16"
PORT = 4791
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
KEPT = section(*HALVES, cidrs=[SHARED])
KEPT["staticRoutes"]["keep"] = ["ib*"]
ROUTES_ALONE = section(*HALVES, cidrs=[SHARED])

# A connection that should fail is given up after this long. It would be made within a millisecond.
_LOST_SECONDS = 0.2
_PATIENCE_SECONDS = 5.0

T = TypeVar("T")

Reached = dict[str, bool]


@attrs.frozen
class End:
    """An end of a connection.

    Args:
        namespace: the host's network namespace, or None for the node's.
        address: the address, or an empty string to let the kernel choose it.
        device: the interface to which the socket is bound, or an empty string.
    """

    namespace: Namespace | None
    address: str
    device: str = ""


@attrs.frozen
class H200:
    """A node, with hosts of the cluster and on InfiniBand's network.

    Args:
        count: number of InfiniBand interfaces.
        ends: the ends of connections, by name.
        servers: a listening socket for each address.
    """

    count: int
    ends: dict[str, End]
    servers: dict[str, socket.socket]

    def reached(self, expected: Reached) -> Reached:
        """Connect in both directions, and return which connections succeeded.

        Args:
            expected: the connections to make, each with whether it should succeed, which determines
                how long to wait.
        """
        reached: Reached = {}
        for name, is_expected in expected.items():
            source, _, target = name.partition(" -> ")
            seconds = _PATIENCE_SECONDS if is_expected else _LOST_SECONDS
            # A failed ARP request delays the next one.
            for each in {end.namespace for end in self.ends.values()}:
                _inside(each, lambda: run_ip("neigh flush all"))
            reached[name] = self._connects(self.ends[source], self.ends[target], seconds)
        return reached

    def _connects(self, source: End, target: End, seconds: float) -> bool:
        """Return whether a connection is made, and an answer of the server comes back."""
        server = self.servers[target.address]

        def connect() -> bool:
            with socket.socket() as client:
                client.settimeout(seconds)
                client.bind((source.address, 0))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, source.device.encode())
                try:
                    client.connect((target.address, PORT))
                except OSError:
                    return False
                server.settimeout(_PATIENCE_SECONDS)
                accepted, _ = server.accept()
                with accepted:
                    accepted.sendall(b"answer")
                    return client.recv(6) == b"answer"

        return _inside(source.namespace, connect)


def _inside(namespace: Namespace | None, function: Callable[[], T]) -> T:
    return function() if namespace is None else namespace.run(function)


def _listen(address: str) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, PORT))
    server.listen()
    return server


@contextmanager
def h200(count: int, rp_filter: int) -> Iterator[H200]:
    """Create the hosts, with this thread in a new network namespace, the node's."""
    on_linux()
    _set_sysctls(rp_filter=rp_filter, arp_ignore=1, arp_announce=2)
    cluster, fabric = Namespace(), Namespace()
    for namespace in (cluster, fabric):
        namespace.run(lambda: _set_sysctls(rp_filter=0, arp_ignore=1, arp_announce=2))

    def far_end(namespace: Namespace) -> str:
        return f"/proc/{os.getpid()}/fd/{namespace.fd}"

    # One command each, because "ip -batch" can't open another namespace.
    tool(*f"ip link add eth0 type veth peer name e netns {far_end(cluster)}".split())
    for number in range(count):
        peer = f"peer name p{number} netns {far_end(fabric)}"
        tool(*f"ip link add ib{number} type veth {peer}".split())
    cluster.run(
        lambda: run_ip(
            *("link set lo up", "link set e up", f"address add {ROUTER}/24 dev e"),
            f"address add {IN_CLUSTER}/32 dev lo",
        )
    )
    fabric.run(
        lambda: run_ip(
            *("link set lo up", "link add switch type bridge", "link set switch up"),
            *(f"link set p{number} master switch up" for number in range(count)),
            f"address add {ON_INFINIBAND}/16 dev switch",
        )
    )
    run_ip(
        *("link set eth0 up", f"address add {OWN}/24 dev eth0"),
        f"route add default via {ROUTER} dev eth0 proto dhcp metric 100",
        *(f"link set ib{number} up" for number in range(count)),
        *(f"address add 172.16.0.{10 + number}/16 dev ib{number}" for number in range(count)),
    )
    own = {f"ib{number}": f"172.16.0.{10 + number}" for number in range(count)}
    ends = {
        "cluster": End(cluster, IN_CLUSTER),
        "infiniband": End(fabric, ON_INFINIBAND),
        "node": End(None, ""),
        "eth0": End(None, OWN),
        **{dev: End(None, address) for dev, address in own.items()},
        **{f"device {dev}": End(None, "", dev) for dev in own},
    }
    with ExitStack() as stack:
        servers: dict[str, socket.socket] = {}
        for end in ends.values():
            if end.address:
                server = _inside(end.namespace, partial(_listen, end.address))
                servers[end.address] = stack.enter_context(server)
        yield H200(count, ends, servers)


def _set_sysctls(**values: int) -> None:
    for name, value in values.items():
        for dev in ("all", "default"):
            Path(f"/proc/sys/net/ipv4/conf/{dev}/{name}").write_text(str(value))


# --- what is reached ------------------------------------------------------------------------------


def sick(node: H200, rp_filter: int) -> Reached:
    """Return what is reached without any fix.

    All that is sent from InfiniBand addresses leaves through ib0. So with strict reverse path
    filtering, the other interfaces hear nothing.
    """
    last = f"ib{node.count - 1}"
    cluster = ("node -> cluster", "cluster -> eth0")
    through_ib0 = ("node -> infiniband", "infiniband -> ib0", "ib0 -> infiniband")
    through_last = (
        f"infiniband -> {last}",
        f"{last} -> infiniband",
        f"device {last} -> infiniband",
    )
    return {
        **dict.fromkeys(cluster, False),
        **dict.fromkeys(through_ib0, True),
        **dict.fromkeys(through_last, rp_filter != 1),
    }


def fixed(node: H200, rp_filter: int, *, is_kept: bool) -> Reached:
    """Return what is reached with routes for both halves of InfiniBand's network."""
    last = f"ib{node.count - 1}"
    cluster = ("node -> cluster", "cluster -> eth0")
    by_address = (
        "infiniband -> ib0",
        "ib0 -> infiniband",
        f"infiniband -> {last}",
        f"{last} -> infiniband",
    )
    return {
        **dict.fromkeys(cluster, True),
        **dict.fromkeys(by_address, is_kept),
        f"device {last} -> infiniband": is_kept or rp_filter != 1,
        # A socket that isn't bound follows the routes.
        "node -> infiniband": False,
    }


def ours() -> str:
    """Return our rules, and our routes of all tables."""
    shown = [
        tool("ip", "-N", "rule", "show"),
        tool("ip", "-N", "route", "show", "table", "all", "proto", "217"),
    ]
    return "".join(line for line in shown[0].splitlines(True) if "proto 217" in line) + shown[1]


def by_a_bound_device() -> list[str]:
    """Return the answers for sockets that are bound to a device."""
    asked = [tool("ip", "route", "get", ON_INFINIBAND, "oif", dev) for dev in ("ib0", "ib3")]
    return [re.sub(r"\s+", " ", answer) for answer in asked]


def proposed(run: Callable[..., tuple[int, str, str]], path: Path) -> Config:
    """Return the config with the fix that ``fix`` proposes for it."""
    path.write_text(json.dumps({"hostRouting": section(cidrs=[SHARED])}))
    code, out, err = run("fix", path)
    assert code == 0, err
    return Config.from_mapping(json.loads(out))


@contextmanager
def watching(config: Config, host: Host) -> Iterator[None]:
    """Run the watcher in a thread of this network namespace."""
    scope = CancelScope()
    ready = threading.Event()

    def hear(line: str) -> None:
        if line == "READY=1":
            ready.set()

    task = WatchHostRouting(lambda: config, host, lambda _: None, hear)

    def watch() -> None:
        with suppress(Cancelled):
            task.do(scope)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        assert ready.wait(_PATIENCE_SECONDS)
        yield
    finally:
        scope.cancel("the test ends")
        thread.join()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(routes=NamespaceKernel(), units=FakeSystemd(), layout=Layout(tmp_path))


SOME_WORLDS = [(4, 1), (8, 0), (8, 2)]
WORLDS = pytest.mark.parametrize(
    ("count", "rp_filter"), [*product((4, 8), (0, 1, 2))] if IS_NIGHTLY else SOME_WORLDS
)


@WORLDS
def test_the_fix_keeps_infiniband_and_reaches_the_cluster(
    count: int, rp_filter: int, host: Host, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with h200(count, rp_filter) as node:
        before = sick(node, rp_filter)
        assert node.reached(before) == before
        bound = by_a_bound_device()
        config = proposed(run, tmp_path / "config.json")
        phases.run(Configure(config, host=host))
        after = fixed(node, rp_filter, is_kept=True)
        assert node.reached(after) == after
        assert by_a_bound_device() == bound
        state = ours()
        report = phases.run(Configure(config, host=host))
        assert not report.changes
        assert ours() == state
        phases.run(RemoveHostRouting(host=host))
        assert ours() == ""
        assert node.reached(before) == before


@pytest.mark.parametrize("rp_filter", [0, 1, 2])
def test_routes_alone_cut_infiniband_off(rp_filter: int, host: Host) -> None:
    with h200(4, rp_filter) as node:
        phases.run(Configure(Config.from_mapping({"hostRouting": ROUTES_ALONE}), host=host))
        after = fixed(node, rp_filter, is_kept=False)
        assert node.reached(after) == after


@WORLDS
def test_a_reboot_keeps_infiniband(
    count: int, rp_filter: int, host: Host, sandbox: Sandbox
) -> None:
    """The script makes the same rules and tables in a new network namespace as the task does."""
    config = Config.from_mapping({"hostRouting": KEPT})
    with h200(count, rp_filter):
        phases.run(Configure(config, host=host))
        made = ours()
    with h200(count, rp_filter) as node:
        done = sandbox.run(render_static_routes(config), is_host=True)
        assert done.returncode == 0, done.stderr
        assert ours() == made
        after = fixed(node, rp_filter, is_kept=True)
        assert node.reached(after) == after


@pytest.mark.parametrize(("count", "rp_filter"), SOME_WORLDS)
def test_the_watcher_restores_what_a_flap_removes(count: int, rp_filter: int, host: Host) -> None:
    """The kernel drops the side table's route with the link, without an event of its own."""
    config = Config.from_mapping({"hostRouting": KEPT})
    with h200(count, rp_filter) as node:
        phases.run(Configure(config, host=host))
        complete = ours()
        after = fixed(node, rp_filter, is_kept=True)

        def flap() -> None:
            run_ip("link set ib3 down")
            run_ip("link set ib3 up")

        flap()
        assert ours() != complete
        lost = {"infiniband -> ib3": False, "ib3 -> infiniband": False, "infiniband -> ib0": True}
        assert node.reached(lost) == lost
        with watching(config, host):
            until(lambda: ours() == complete)
            flap()
            until(lambda: ours() == complete)
            assert node.reached(after) == after
