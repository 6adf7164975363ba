"""A Linux node's IPv6 side: nft(8) as a subprocess, addresses and routes by netlink.

nft rather than a library: it carries out a text in one transaction of the kernel and keeps its comments, and what this
very nft prints of a table is the one form in which two can be compared: versions differ in how they write a rule.
"""

from __future__ import annotations

import errno as errnos
import os
from contextlib import contextmanager
from ipaddress import IPv6Network
from typing import TYPE_CHECKING

from hostrouting.azure.errors import LoadBalancerProbeError
from hostrouting.azure.ipv6 import Ipv6Kernel, Ipv6Route
from hostrouting.azure.probe.metadata import MetadataService
from hostrouting.azure.probe.port import NodeAddress, Pin
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.kernel.default_route import unicast_defaults
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import NextHop, Protocol, RouteType, Table
from phases import CancelScope, TimedOut

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator, Sequence
    from ipaddress import IPv6Address

    from hostrouting.model.links import Link
    from hostrouting.model.routes import Route

__all__ = ["LinuxProbeNode"]

# nft waits for its lock, and a loaded machine is slow; one that hangs is an error.
ANSWER_SECONDS = 30.0

_NOT_FOUND = 127  # of a shell, POSIX 2.8.2


class LinuxProbeNode:
    """A ``ProbeNode``: the network namespace that the calling thread is in. All about rules needs CAP_NET_ADMIN.

    Args:
        search_path: where nft(8) and unshare(1) are looked for, whatever the path of who runs this.
    """

    def __init__(self, *, search_path: str = SEARCH_PATH) -> None:
        self._environment = os.environ | {"LC_ALL": "C", "PATH": search_path}
        self._ipv4, self._ipv6 = NetlinkBackend(), Ipv6Kernel()
        self._metadata = MetadataService()

    # --- what is there -----------------------------------------------------------------------------------------

    def default_devices(self) -> tuple[str, ...]:
        """The devices of the default routes, each once: IPv6's before IPv4's, the best metric first."""
        with _told():
            sixth = [route for route in self._ipv6_routes() if _is_default(route)]
            fourth = unicast_defaults(self._ipv4.default_routes())
        hops = [hop for routes in (_by_metric(sixth), _by_metric(fourth)) for route in routes for hop in route.hops]
        return tuple(dict.fromkeys(hop.dev for hop in hops if hop.dev is not None and not hop.is_dead))

    def links(self) -> tuple[Link, ...]:
        """All network interfaces, by index."""
        with _told():
            return self._ipv4.links()

    def addresses(self) -> tuple[NodeAddress, ...]:
        """All IPv6 addresses; none where the kernel has no IPv6."""
        with _told():
            found = self._ipv6.addresses()
        return tuple(NodeAddress(own.dev, own.local, own.scope == 0, own.is_usable) for own in found)

    def assigned_addresses(self, scope: CancelScope) -> tuple[IPv6Address, ...]:
        """The IPv6 addresses that Azure's metadata service says it has assigned, on any NIC."""
        return self._metadata.assigned_addresses(scope)

    # --- rules -------------------------------------------------------------------------------------------------

    def listing(self, table: str) -> str | None:
        """What is in force of a table of family ip6; None if there is none."""
        words = ("nft", "-s", "list", "table", "ip6", table)
        attempt = f"list the nftables table ip6 {table}"
        done = self._run(attempt, words)
        if done.returncode == 0:
            return done.stdout
        # Of the table, not of something else that is missing: nft repeats the command below.
        first, _, rest = done.stderr.partition("\n")
        if first.startswith("Error: No such file or directory") and rest.startswith("list table ip6"):
            return None
        raise _refused(attempt, done)

    def dry_run(self, text: str, table: str) -> str:
        """The listing that a table would have if a text were loaded, tried in a network namespace of its own."""
        attempt = f"try out the nftables rules of table ip6 {table}"
        commands = f"nft -f - && nft -s list table ip6 {table}"
        done = self._run(attempt, ("unshare", "--net", "sh", "-c", commands), text)
        if done.returncode:
            raise _refused(attempt, done)
        return done.stdout

    def load(self, text: str) -> None:
        """Have nft carry out a text, all of it or nothing."""
        attempt = "load the nftables rules"
        done = self._run(attempt, ("nft", "-f", "-"), text)
        if done.returncode:
            raise _refused(attempt, done)

    # --- routes ------------------------------------------------------------------------------------------------

    def pins(self, destination: IPv6Address) -> tuple[Pin, ...]:
        """The routes of table main to just this address, in the kernel's order; of several hops, each is one."""
        with _told():
            routes = self._ipv6_routes()
        network = IPv6Network(destination)
        return tuple(
            Pin(destination, _as_gateway(hop), hop.dev or "unknown", route.protocol, route.metric)
            for route in routes
            if route.destination == network
            for hop in route.hops or (NextHop(),)
        )

    def pin(self, pin: Pin) -> None:
        """Add a route, in the place of one of ours of the same metric; one that is there already is fine."""
        try:
            self._ipv6.add_route(_as_route(pin))
        except RouteError as error:
            there = [other for other in self.pins(pin.destination) if other.metric == pin.metric]
            if error.errno != errnos.EEXIST or any(other.protocol != Protocol.HOSTROUTING for other in there):
                raise _translated(error) from error
            if there != [pin]:
                with _told():
                    self._ipv6.replace_route(_as_route(pin))

    def unpin(self, pin: Pin) -> None:
        """Delete a route; one that isn't there is fine."""
        try:
            self._ipv6.delete_route(_as_route(pin))
        except RouteError as error:
            # Without its device a route isn't there either.
            if error.errno not in (errnos.ESRCH, errnos.ENODEV):
                raise _translated(error) from error

    def next_hop(self, destination: IPv6Address) -> NextHop | None:
        """Where an unmarked packet of this node to an address goes, by whatever table; None: nowhere."""
        with _told():
            return self._ipv6.next_hop(destination)

    def _ipv6_routes(self) -> list[Ipv6Route]:
        return [route for route in self._ipv6.routes(Table.MAIN) if not route.has_source]

    def _run(self, attempt: str, argv: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
        # Own scope: it takes milliseconds, and half of an answer helps nobody.
        try:
            done = CancelScope(timeout=ANSWER_SECONDS).run(argv, input=text, env=self._environment, check=False)
        except TimedOut:
            raise LoadBalancerProbeError(
                f"can't {attempt}: {argv[0]} gave no answer within {ANSWER_SECONDS:g} s; is another nft hanging?"
            ) from None
        except OSError as error:
            if error.errno == errnos.ENOENT:
                raise _not_installed(attempt, argv[0]) from error
            reason = os.strerror(error.errno or 0)
            raise LoadBalancerProbeError(
                f"can't {attempt}: can't run {argv[0]}: {reason}", errno=error.errno
            ) from error
        if done.returncode == _NOT_FOUND:
            raise _not_installed(attempt, "nft")
        return done


def _is_default(route: Ipv6Route) -> bool:
    return route.destination.prefixlen == 0 and route.type is RouteType.UNICAST


def _by_metric(routes: Iterable[Ipv6Route | Route]) -> list[Ipv6Route | Route]:
    return sorted(routes, key=lambda route: route.metric)


def _as_route(pin: Pin) -> Ipv6Route:
    hop = NextHop(pin.dev, pin.gateway)
    return Ipv6Route(IPv6Network(pin.destination), (hop,), pin.metric, pin.protocol)


def _as_gateway(hop: NextHop) -> IPv6Address | None:
    return hop.gateway if hop.gateway is not None and hop.gateway.version == 6 else None


# --- how it is told ------------------------------------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except RouteError as error:
        raise _translated(error) from error


def _translated(error: RouteError) -> LoadBalancerProbeError:
    hints = {
        errnos.EPERM: "; run as root (CAP_NET_ADMIN)",
        errnos.EACCES: "; look at the sysctl net.ipv6.conf.DEVICE.disable_ipv6",
    }
    # EACCES isn't about us (fib6_nh_init in net/ipv6/route.c).
    errno = None if error.errno == errnos.EACCES else error.errno
    return LoadBalancerProbeError(f"{error}{hints.get(error.errno or 0, '')}", errno=errno)


def _not_installed(attempt: str, program: str) -> LoadBalancerProbeError:
    package = {"nft": "nftables"}.get(program, "util-linux")
    return LoadBalancerProbeError(
        f"can't {attempt}: {program} isn't installed; install the package {package}", errno=errnos.ENOENT
    )


def _refused(attempt: str, done: subprocess.CompletedProcess[str]) -> LoadBalancerProbeError:
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    if "Operation not permitted" in done.stderr:
        return LoadBalancerProbeError(
            f"can't {attempt}: not permitted ({said}); run as root (CAP_NET_ADMIN, and CAP_SYS_ADMIN to try rules out)",
            errno=errnos.EPERM,
        )
    if done.stderr.startswith("unshare:"):
        return LoadBalancerProbeError(
            f"can't {attempt}: no network namespace can be made ({said}); see the sysctl user.max_net_namespaces"
        )
    return LoadBalancerProbeError(f"can't {attempt}: nft refused: {said}")
