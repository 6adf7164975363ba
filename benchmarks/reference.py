"""The other ways: one process a route, two a CIDR, a plain loop over pyroute2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroute2 import IPRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Network

    from hostrouting.model.routes import Route

__all__ = ["check_script", "dump_by_pyroute2", "loop_over_pyroute2", "routes_script", "words_of"]


def words_of(route: Route) -> str:
    """A route as ``ip route add`` takes it."""
    return f"{route.destination} {route.hops[0].words()} proto {route.protocol:d}"


def routes_script(routes: Iterable[Route]) -> str:
    """A script that starts ip once for each route."""
    calls = "\n".join(
        f"install_route {route.destination} {route.hops[0].gateway} {route.hops[0].dev}" for route in routes
    )
    return f"""#!/bin/bash
set -euo pipefail

install_route() {{
  ip -4 route replace "$1" via "$2" dev "$3"
}}

{calls}
"""


def check_script(cidrs: Sequence[IPv4Network]) -> str:
    """A script that looks up one address of each CIDR, with an ip and an awk each."""
    words = " ".join(map(str, cidrs))
    return f"""#!/bin/bash
set -euo pipefail

device_in() {{
  awk '{{ for (i = 1; i < NF; i++) if ($i == "dev") {{ print $(i + 1); exit }} }}'
}}

expected=$(ip -4 route show default | device_in)
status=0
for cidr in {words}; do
  first=${{cidr%/*}}
  probe=${{first%.*}}.$((${{first##*.}} + 1))
  actual=$(ip -4 route get "$probe" | device_in)
  if [ "$actual" != "$expected" ]; then
    echo "OVERLAP: expected CIDR $cidr (probe $probe) routes via $actual, expected $expected" >&2
    status=1
  fi
done
exit "$status"
"""


def loop_over_pyroute2(routes: Iterable[Route]) -> None:
    """Add routes one by one, as pyroute2's documentation shows it."""
    with IPRoute() as netlink:
        index = netlink.link_lookup(ifname="eth0")[0]
        for route in routes:
            netlink.route(
                "add", dst=str(route.destination), gateway=str(route.hops[0].gateway), oif=index, proto=route.protocol
            )


def dump_by_pyroute2() -> int:
    """List all routes; how many there are."""
    with IPRoute() as netlink:
        return sum(1 for _ in netlink.get_routes(family=2))
