"""Random hosts with addresses of all scopes, as ip(8) commands."""

from __future__ import annotations

from hypothesis import strategies as st

DEVICES = ("eth0", "eth1", "ib0")
_SCOPES = ("",) * 6 + (" scope link", " scope host", " scope 100", " scope 220")


@st.composite
def _address_commands(draw: st.DrawFn) -> str:
    dev = draw(st.sampled_from((*DEVICES, *DEVICES, "lo")))
    local = f"10.{draw(st.integers(1, 3))}.{draw(st.integers(0, 1))}.{draw(st.sampled_from((1, 2, 3, 129)))}"
    peer = f" peer 10.4.0.{draw(st.sampled_from((1, 2, 129)))}" if draw(st.integers(0, 5)) == 0 else ""
    length = draw(st.sampled_from((24, 24, 24, 25, 25, 16, 31, 32)))
    return f"address add {local}{peer}/{length} dev {dev}{draw(st.sampled_from(_SCOPES))}"


@st.composite
def _hop_words(draw: st.DrawFn) -> str:
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
def _route_commands(draw: st.DrawFn) -> str:
    """Draw an ip(8) route command for one of nine destinations, including the default route."""
    place = draw(st.integers(0, 8))
    start = f"route add {'default' if place == 8 else f'192.0.2.{16 * place}/28'}"
    if draw(st.integers(0, 3)) == 0:
        start += f" src 10.{draw(st.integers(1, 3))}.{draw(st.integers(0, 1))}.{draw(st.sampled_from((1, 2, 3)))}"
    if draw(st.integers(0, 3)) == 0:
        start += f" scope {draw(st.sampled_from(('global', 'global', 'link', 'host', '100', '200')))}"
    hops = draw(st.lists(_hop_words(), min_size=1, max_size=2 if draw(st.integers(0, 4)) == 0 else 1))
    return f"{start} {hops[0]}" if len(hops) == 1 else f"{start} nexthop {' nexthop '.join(hops)}"


@st.composite
def hosts_with_scopes(draw: st.DrawFn) -> list[str]:
    """Draw ip(8) commands, some of which fail."""
    addresses = draw(st.lists(_address_commands(), max_size=8))
    routes = draw(st.lists(_route_commands(), min_size=4, max_size=14))
    # The kernel also uses addresses of interfaces that are down.
    down = [f"link set {dev} down" for dev in draw(st.sampled_from(((), (), (), *((dev,) for dev in DEVICES))))]
    gone = draw(st.sampled_from(((),) * 3 + (addresses[:1], addresses[1:2])))
    return [*addresses, *down, *routes, *(line.replace(" add ", " del ") for line in gone)]
