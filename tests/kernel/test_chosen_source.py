"""The source that is computed for an answer is the one that the kernel chooses, on random hosts."""

from __future__ import annotations

import re
import subprocess
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import by_day

from hostrouting.kernel.namespace import NamespaceKernel, enter_namespace
from hostrouting.kernel.nexthops import Sources
from hostrouting.model.routes import RouteType

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.kernel

_SETTINGS = settings(max_examples=by_day(6, by_night=1000), suppress_health_check=[HealthCheck.too_slow])

# --- hosts, as ip(8) is told to make them ------------------------------------------------------------------------

DEVICES = ("eth0", "eth1", "ib0")
_SCOPES = ("",) * 6 + (" scope link", " scope host", " scope 100", " scope 220")


@st.composite
def _addresses(draw: st.DrawFn) -> str:
    dev = draw(st.sampled_from((*DEVICES, *DEVICES, "lo")))
    local = f"10.{draw(st.integers(1, 3))}.{draw(st.integers(0, 1))}.{draw(st.sampled_from((1, 2, 3, 129)))}"
    peer = f" peer 10.4.0.{draw(st.sampled_from((1, 2, 129)))}" if draw(st.integers(0, 5)) == 0 else ""
    length = draw(st.sampled_from((24, 24, 24, 25, 25, 16, 31, 32)))
    return f"address add {local}{peer}/{length} dev {dev}{draw(st.sampled_from(_SCOPES))}"


@st.composite
def _hops(draw: st.DrawFn) -> str:
    gateway = draw(
        st.sampled_from(
            (
                "",
                "",
                "via inet6 fe80::9 ",
                *(f"via 10.{net}.{host} " for net in ("1.0", "2.0", "3.1", "4.0") for host in (1, 9, 200)),
            )
        )
    )
    onlink = " onlink" if "via" in gateway and draw(st.booleans()) else ""
    return f"{gateway}dev {draw(st.sampled_from(DEVICES))}{onlink}"


@st.composite
def _routes(draw: st.DrawFn) -> str:
    """To one of nine destinations; the last of them is everything."""
    place = draw(st.integers(0, 8))
    start = f"route add {'default' if place == 8 else f'192.0.2.{16 * place}/28'}"
    if draw(st.integers(0, 3)) == 0:
        start += f" src 10.{draw(st.integers(1, 3))}.{draw(st.integers(0, 1))}.{draw(st.sampled_from((1, 2, 3)))}"
    if draw(st.integers(0, 3)) == 0:
        start += f" scope {draw(st.sampled_from(('global', 'global', 'link', 'host', '100', '200')))}"
    hops = draw(st.lists(_hops(), min_size=1, max_size=2 if draw(st.integers(0, 4)) == 0 else 1))
    return f"{start} {hops[0]}" if len(hops) == 1 else f"{start} nexthop {' nexthop '.join(hops)}"


@st.composite
def hosts(draw: st.DrawFn) -> list[str]:
    """Commands for ip(8), some of which the kernel refuses."""
    addresses = draw(st.lists(_addresses(), max_size=8))
    routes = draw(st.lists(_routes(), min_size=4, max_size=14))
    # The addresses of an interface that is down count too.
    down = [f"link set {dev} down" for dev in draw(st.sampled_from(((), (), (), *((dev,) for dev in DEVICES))))]
    gone = draw(st.sampled_from(((),) * 3 + (addresses[:1], addresses[1:2])))
    return [*addresses, *down, *routes, *(line.replace(" add ", " del ") for line in gone)]


ASKED = [IPv4Address(f"192.0.2.{16 * place + 1}") for place in range(9)]


def _ip(lines: Sequence[str]) -> str:
    command = ["ip", "-4", "-o", "-force", "-batch", "-"]
    return subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False).stdout


def chosen_by_the_kernel(addresses: Sequence[IPv4Address]) -> dict[IPv4Address, IPv4Address | None]:
    """The source in the answer of a plain look-up of each address; None: it has none."""
    chosen: dict[IPv4Address, IPv4Address | None] = {}
    for line in _ip([f"route get {address}" for address in addresses]).splitlines():
        source = re.search(r" src (\S+)", line)
        chosen[IPv4Address(line.split()[0])] = IPv4Address(source[1]) if source else None
    return chosen


@_SETTINGS
@given(commands=hosts())
def test_the_computed_source_is_the_one_that_the_kernel_chooses(commands: list[str]) -> None:
    enter_namespace()
    kernel = NamespaceKernel()
    for dev in DEVICES:
        kernel.add_link(dev)
    _ip(commands)
    addresses, chosen = kernel.addresses(), chosen_by_the_kernel(ASKED)
    for answer in kernel.lookup(ASKED):
        if answer.route is None or answer.route.type is not RouteType.UNICAST:
            continue
        computed, source = Sources(addresses).of(answer.route), chosen[answer.address]
        if sum(not hop.is_dead for hop in answer.route.hops) == 1:
            assert computed == (() if source is None else (source,)), str(answer.route)
        else:  # a plain look-up tells of one of the hops
            assert source in (computed or (None,)), str(answer.route)
