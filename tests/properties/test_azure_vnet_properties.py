"""What is planned to go is stale, whatever a node holds: nothing outside, of a live pod, or of another shape."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import TypeAlias, TypeVar

import attrs
from hypothesis import example, given
from hypothesis import strategies as st
from stale import SNAT, arp_reply, dnat

from hostrouting.azure.config import StaleAzureVnet
from hostrouting.azure.vnet.parse import TUNNEL_MAC, Endpoint, parse_pod_rule
from hostrouting.azure.vnet.plan import plan_cleaning
from hostrouting.azure.vnet.port import Interface, Neighbour, NodeState

T = TypeVar("T")
Node: TypeAlias = tuple[NodeState, list[Endpoint]]

# A small world, so that things meet.
ADDRESSES = [IPv4Address(f"10.1.0.{n}") for n in (1, 2, 3, 4, 200)] + [IPv6Address("fd00::2"), IPv6Address("fd00:1::2")]
MACS = [f"a2:00:00:00:00:0{n}" for n in range(5)]
VETHS = ["azv0", "azv1", "azv2"]
CIDRS = ["10.1.0.0/25", "10.1.0.0/30", "fd00::/64"]

# Mostly inside.
addresses = st.sampled_from([*ADDRESSES[:4], *ADDRESSES])
macs = st.sampled_from([*MACS, TUNNEL_MAC])
far_macs = st.none() | st.sampled_from(MACS)


@st.composite
def rules(draw: st.DrawFn) -> str:
    address, mac = draw(addresses), draw(macs)
    if address.version == 4 and draw(st.booleans()):
        line = arp_reply(address, mac)
    else:
        line = dnat(address, mac, draw(st.sampled_from(["eth0", "eth0", "eth0", "eth1"])))
    more = draw(st.sampled_from(["", "", "", " -c 1 2", "POSTROUTING"]))
    return line.replace("PREROUTING", more) if more == "POSTROUTING" else line + more


neighbours = st.builds(Neighbour, dev=st.just("azure0"), address=addresses, mac=macs)
endpoints = st.builds(
    Endpoint,
    interface=st.sampled_from([*VETHS, "azvgone", ""]),
    mac=far_macs,
    addresses=st.lists(addresses, max_size=2).map(tuple),
)


@attrs.frozen
class Pod:
    """A pod that azure-vnet made, and what there is of it still.

    Args:
        address: its.
        mac: of its end.
        veth: the host's end.
        parts: which of its rules and neighbour are there.
        far_macs: what is seen behind the host's end, if that is there: nothing, if it can't be read.
        is_listed: whether azure-vnet's state has it.
    """

    address: IPv4Address | IPv6Address
    mac: str
    veth: str
    parts: frozenset[str]
    far_macs: tuple[str | None, ...]
    is_listed: bool

    def rules(self) -> list[str]:
        """Those of its parts that are rules."""
        made = []
        if "dnat" in self.parts:
            made.append(dnat(self.address, self.mac))
        if self.address.version == 4:
            made += [arp_reply(self.address, self.mac)] if "arpreply" in self.parts else []
            made += [arp_reply(self.address, TUNNEL_MAC)] if "tunnel" in self.parts else []
        return made


PARTS = ("dnat", "arpreply", "tunnel", "neighbour")


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    mac = draw(st.sampled_from(MACS[1:]))
    return Pod(
        draw(addresses),
        mac,
        draw(st.sampled_from(VETHS)),
        draw(st.just(frozenset(PARTS)) | st.frozensets(st.sampled_from(PARTS))),
        draw(st.sampled_from([(), (), (), (mac,), (mac,), (MACS[4],), (None,)])),
        draw(st.booleans()),
    )


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A few pods, living, gone or both at once, so that things meet; and whatever else there may be."""
    them = draw(st.lists(pods(), min_size=1, max_size=4))
    pairs = {pod.veth: far_mac for pod in them for far_mac in pod.far_macs}
    own = [Interface("eth0", MACS[0]), Interface("azure0", draw(st.sampled_from(["", MACS[0], MACS[1]])))]
    of_pods = [Neighbour("azure0", pod.address, pod.mac) for pod in them if "neighbour" in pod.parts]
    others = draw(st.lists(neighbours, max_size=3))
    state = NodeState(
        rules=(
            *draw(st.sampled_from([(SNAT,), (SNAT,), ()])),
            *(rule for pod in them for rule in pod.rules()),
            *draw(st.lists(rules(), max_size=3)),
        ),
        interfaces=(
            *own,
            *(
                Interface(name, far_mac=far_mac, seen_macs=tuple(draw(st.sampled_from([(), (), (), (MACS[3],)]))))
                for name, far_mac in sorted(pairs.items())
            ),
        ),
        gateways=tuple(draw(st.lists(addresses, max_size=1))),
        neighbours=tuple({one.address: one for one in (*others, *of_pods)}.values()),
    )
    listed = [Endpoint(pod.veth, pod.mac, (pod.address,)) for pod in them if pod.is_listed]
    return state, [*listed, *draw(st.lists(endpoints, max_size=2))]


# Made once: a config parses what it is given.
configs = st.sampled_from(
    [
        StaleAzureVnet(cidrs, keep)
        for cidrs in (CIDRS[:1], CIDRS[1:2], CIDRS[1:], CIDRS, CIDRS)
        for keep in (
            [],
            [],
            [],
            *([address] for address in ADDRESSES if any(address in ip_network(cidr) for cidr in cidrs)),
        )
    ]
)


# The state gives the address to a live pod, and a rule of the one before it is left.
TWO_PODS = NodeState(
    rules=(f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.1.0.3 -j arpreply --arpreply-mac {MACS[1]}",),
    interfaces=(Interface("azv2", far_mac=MACS[0]),),
)


# The state alone gives a rule's MAC to a live pod, and to two of them.
TWO_PAIRS = NodeState(
    rules=(dnat(ADDRESSES[2], MACS[1]),),
    interfaces=(Interface("azv1", far_mac=MACS[2]), Interface("azv2", far_mac=MACS[3])),
)
TWO_LISTED = [Endpoint(name, MACS[1], (ADDRESSES[2],)) for name in ("azv1", "azv2")]

# azure-vnet has just made the pair and ARP's rule, in tunnel mode.
HALF_DONE = NodeState(
    rules=(arp_reply(ADDRESSES[2], TUNNEL_MAC), dnat(ADDRESSES[2], MACS[1])),
    interfaces=(Interface("azv2", far_mac=MACS[2]),),
)


@given(configs, nodes())
@example(StaleAzureVnet(["10.1.0.0/25"]), (TWO_PAIRS, TWO_LISTED))
@example(StaleAzureVnet(["10.1.0.0/25"]), (HALF_DONE, []))
@example(StaleAzureVnet(["10.1.0.0/25"]), (TWO_PODS, [Endpoint("azv2", MACS[0], (ADDRESSES[2],))]))
def test_nothing_of_a_live_pod_ever_goes(config: StaleAzureVnet, node: Node) -> None:
    state, listed = node
    names = {one.name for one in state.interfaces}
    veths = [one for one in state.interfaces if one.name in VETHS]
    pod_ends = {mac for one in veths for mac in (one.far_mac, *one.seen_macs)}
    is_unreadable = None in pod_ends
    known = [rule for line in state.rules if (rule := parse_pod_rule(line)) is not None and not rule.is_tunnel]
    begun = {rule.mac for rule in known if rule.uplink is not None}
    saved = {endpoint.interface for endpoint in listed}
    is_half_done = any(one.name not in saved and begun.isdisjoint((one.far_mac, *one.seen_macs)) for one in veths)
    for item in plan_cleaning(config, state, listed).removed:
        rule = parse_pod_rule(item.what) if isinstance(item.what, str) else None
        if rule is not None and rule.is_tunnel:
            assert not is_half_done
            of_the_pod = {other.mac for other in known if other.uplink is not None and other.address == rule.address}
        else:
            it = rule if rule is not None else item.what
            assert not isinstance(it, str)
            of_the_pod = {it.mac}
        assert not of_the_pod & pod_ends
        if is_unreadable:
            # What can't be read may be anybody's but a pod's that is known to be gone.
            gone = [one for one in listed if one.interface and one.interface not in names]
            assert of_the_pod
            assert of_the_pod <= {one.mac for one in gone if item.address in one.addresses}
        for endpoint in listed:
            if endpoint.interface in names and item.address in endpoint.addresses:
                # Only of another MAC, and what tells none isn't.
                assert endpoint.mac is not None
                assert of_the_pod - {endpoint.mac}
                assert endpoint.mac not in of_the_pod


# To the fabric.
ODD = NodeState(neighbours=(Neighbour("azure0", ADDRESSES[2], TUNNEL_MAC),))


@given(configs, nodes())
@example(StaleAzureVnet(["10.1.0.0/25"]), (ODD, [Endpoint("azvgone", TUNNEL_MAC, (ADDRESSES[2],))]))
def test_what_goes_is_of_a_pods_shape_and_in_the_cidrs(config: StaleAzureVnet, node: Node) -> None:
    state, listed = node
    plan = plan_cleaning(config, state, listed)
    for item in plan.removed:
        assert any(item.address in cidr for cidr in config.cidrs)
        assert item.address not in (*config.keep, *state.gateways)
        if isinstance(item.what, str):
            rule = parse_pod_rule(item.what)
            assert rule is not None
            assert item.what in (arp_reply(rule.address, rule.mac), dnat(rule.address, rule.mac))
            assert rule.uplink in (None, "eth0")
            assert rule.mac not in {one.mac for one in state.interfaces}
        else:
            assert item.what.mac != TUNNEL_MAC
    named = Counter[object](item.what for item in (*plan.removed, *plan.kept))
    there = Counter[object]([*state.rules, *state.neighbours])
    assert not named - there
    assert sum(there.values()) == sum(named.values()) + plan.other_rules


@given(configs, nodes())
def test_what_a_plan_or_a_crash_leaves_is_planned_alike(config: StaleAzureVnet, node: Node) -> None:
    """Neighbours go first, the rules in one batch last: as the task does it."""
    state, listed = node
    plan = plan_cleaning(config, state, listed)
    neighbours = [item.what for item in plan.removed if item.kind != "rule"]
    everything = {item.what for item in plan.removed}
    for gone in (*(set(neighbours[:done]) for done in range(len(neighbours) + 1)), everything):
        left = attrs.evolve(
            state,
            rules=tuple(one for one in state.rules if one not in gone),
            neighbours=tuple(one for one in state.neighbours if one not in gone),
        )
        again = plan_cleaning(config, left, listed)
        assert {item.what for item in again.removed} == everything - gone
        assert [item.what for item in again.kept] == [item.what for item in plan.kept]
