"""Exactly the two shapes of a pod's rule, and azure-vnet's state as Go writes it."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from stale import ARP_REPLIES, GONE, GONE6, GONE_MAC, SNAT, TUNNEL_MAC, arp_reply, dnat, state

from hostrouting.azure.nodes import AzureVnetError
from hostrouting.azure.vnet.parse import Endpoint, PodRule, parse_endpoints, parse_pod_rule


def test_the_two_shapes_are_a_pods() -> None:
    reply = PodRule(GONE, GONE_MAC)
    assert parse_pod_rule(arp_reply(GONE)) == reply
    assert not reply.is_tunnel
    tunnel = parse_pod_rule(arp_reply(GONE, TUNNEL_MAC))
    assert tunnel is not None
    assert tunnel.is_tunnel
    assert parse_pod_rule(dnat(GONE)) == PodRule(GONE, GONE_MAC, "eth0")
    assert parse_pod_rule(dnat(GONE6)) == PodRule(GONE6, GONE_MAC, "eth0")


@pytest.mark.parametrize(
    "line",
    [
        SNAT,
        ARP_REPLIES,
        dnat(GONE).replace("PREROUTING", "POSTROUTING"),
        dnat(GONE).replace("PREROUTING", "own"),
        dnat(GONE).replace(str(GONE), "10.1.0.0/24"),
        dnat(GONE).replace(str(GONE), "10.1.0.32/32"),
        dnat(GONE).replace(str(GONE), f"! {GONE}"),
        dnat(GONE).replace("-i eth0", "-i ! eth0"),
        dnat(GONE).replace("-i eth0 ", ""),
        dnat(GONE).replace("-i eth0", "-i eth0 --logical-in azure0"),
        dnat(GONE).replace("-p IPv4", "-p IPv4 -d Unicast"),
        dnat(GONE).replace("-j dnat", "--ip-proto tcp -j dnat"),
        dnat(GONE).replace("--dnat-target ACCEPT", "--dnat-target CONTINUE"),
        dnat(GONE).replace(" --dnat-target ACCEPT", ""),
        dnat(GONE).replace("-p IPv4", "-p IPv6"),
        dnat(GONE).replace(str(GONE), "10.1.0.999"),
        dnat(GONE).replace("-j dnat --to-dst", "-j redirect --to-dst"),
        dnat(GONE) + " -c 1 2",
        "[0:0] " + dnat(GONE),
        dnat(GONE6).replace(str(GONE6), "fd00::/64"),
        dnat(GONE6).replace(str(GONE6), f"{GONE6}/ffff:ffff::"),
        arp_reply(GONE) + " --arpreply-target ACCEPT",
        arp_reply(GONE).replace("-p ARP", "-p ARP -i eth0"),
        arp_reply(GONE).replace("Request", "Reply"),
        arp_reply(GONE).replace("--arp-ip-dst", "--arp-ip-src"),
        arp_reply(GONE).replace(GONE_MAC, "a2:06:00:20:0b"),
    ],
)
def test_anything_less_more_or_else_is_somebody_elses(line: str) -> None:
    assert parse_pod_rule(line) is None


# --- the state ---------------------------------------------------------------------------------------------------


def test_endpoints_are_read_with_their_macs_from_base64() -> None:
    text = state(("azv1", GONE_MAC, "10.1.0.32"), ("azv2", None, "fd00::33"))
    assert parse_endpoints(text) == (
        Endpoint("azv1", GONE_MAC, (IPv4Address("10.1.0.32"),)),
        Endpoint("azv2", None, (IPv6Address("fd00::33"),)),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "{}",
        '{"Network": null, "Other": 5}',
        '{"Network": {"ExternalInterfaces": null}}',
        '{"Network": {"ExternalInterfaces": {"eth0": {"Networks": {"azure": {"Endpoints": null}}, "x": 1}}}}',
        '{"Network": {"ExternalInterfaces": {"eth0": null, "eth1": {"Networks": {"a": null}}}}}',
    ],
)
def test_a_state_without_endpoints_is_fine(text: str) -> None:
    assert parse_endpoints(text) == ()


def _with(**fields: Any) -> str:
    document = json.loads(state(("azv1", GONE_MAC, "10.1.0.32")))
    document["Network"]["ExternalInterfaces"]["eth0"]["Networks"]["azure"]["Endpoints"]["0-eth0"] |= fields
    return json.dumps(document)


def test_missing_lists_and_unknown_keys_are_fine() -> None:
    assert parse_endpoints(_with(IPAddresses=None, New={"a": 1})) == (Endpoint("azv1", GONE_MAC, ()),)


@pytest.mark.parametrize(
    "text",
    [
        '{"Network": ',
        "\udcff\udcfe",
        "[" * 100_000,
        "[]",
        '{"Network": []}',
        '{"Network": {"ExternalInterfaces": {"eth0": 5}}}',
        _with(MacAddress="%%%"),
        _with(MacAddress="AAAA"),
        _with(MacAddress="ä"),
        _with(MacAddress=5),
        _with(HostIfName=["azv1"]),
        _with(IPAddresses={"a": 1}),
        _with(IPAddresses=["10.1.0.32"]),
        _with(IPAddresses=[{"IP": "10.1.0"}]),
    ],
)
def test_a_state_that_cant_be_understood_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(AzureVnetError, match="can't tell which pods azure-vnet still serves: /x can't be"):
        parse_endpoints(text, "/x")
