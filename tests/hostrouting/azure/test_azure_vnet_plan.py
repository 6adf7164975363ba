"""What goes, what stays, and why: row by row."""

from __future__ import annotations

import json
import re
from ipaddress import IPv4Address
from typing import Any

import attrs
import pytest
from stale import (
    ARP_REPLIES,
    GATEWAY,
    GONE,
    GONE6,
    GONE_MAC,
    GONE_RULES,
    INTERFACES,
    LIVE,
    LIVE_MAC,
    LIVE_RULES,
    NIC_MAC,
    NODE_RULES,
    OWN,
    SNAT,
    TUNNEL_MAC,
    arp_reply,
    config,
    dnat,
    neighbour,
    node_state,
    state,
)

from hostrouting.azure.vnet.parse import parse_endpoints
from hostrouting.azure.vnet.plan import AzureVnetReport, Item, plan_cleaning
from hostrouting.azure.vnet.port import Interface, Neighbour, NodeState
from hostrouting.cli.azure.vnet import report_text

UNREADABLE = (*INTERFACES, Interface("azvdark", "aa:aa:aa:aa:aa:09", master="azure0"))
DEAD = ("azvgone", GONE_MAC, str(GONE))


def plan(node: NodeState, *endpoints: tuple[str, str | None, str], **fields: Any) -> AzureVnetReport:
    return plan_cleaning(config(**fields), node, parse_endpoints(state(*endpoints)))


def why(items: tuple[Item, ...], what: str | Neighbour) -> str:
    """The reason of an item that has to be among these."""
    (reason,) = {item.reason for item in items if item.what == what}
    return reason


def only(**fields: Any) -> NodeState:
    return node_state(**({"rules": (), "neighbours": ()} | fields))


# --- rules -------------------------------------------------------------------------------------------------------


def test_the_rules_and_the_neighbour_of_a_gone_pod_go_and_nothing_else() -> None:
    found = plan(node_state())
    assert {item.what for item in found.removed} == {*GONE_RULES, neighbour(GONE)}
    assert {item.what for item in found.kept} == {*LIVE_RULES, NODE_RULES[2], neighbour(LIVE, LIVE_MAC)}
    assert found.other_rules == 2
    assert why(found.removed, dnat(GONE)) == "no pod here has this MAC any more"
    assert why(found.kept, LIVE_RULES[0]) == "the pod behind azvlive has this MAC"


def test_to_be_listed_in_the_state_is_no_sign_of_life() -> None:
    assert why(plan(node_state(), DEAD).removed, dnat(GONE)) == "no pod here has this MAC any more"


def test_an_endpoint_whose_interface_is_there_has_its_address_and_mac() -> None:
    node = node_state(interfaces=(*INTERFACES, Interface("veth9")))
    assert why(plan(node, ("veth9", GONE_MAC, str(GONE))).kept, dnat(GONE)) == "azure-vnet serves it: veth9 is there"
    assert dnat(GONE) in {item.what for item in plan(node, ("veth9", LIVE_MAC, str(GONE))).removed}
    assert dnat(GONE) in {item.what for item in plan(node, ("veth9", GONE_MAC, str(LIVE))).removed}
    # Which MAC it has, it doesn't say: it may be this one.
    assert why(plan(node, ("veth9", None, str(GONE))).kept, dnat(GONE)).startswith("azure-vnet serves it")


@pytest.mark.parametrize(
    ("line", "fields", "reason"),
    [
        (dnat("10.2.0.32"), {}, "it is outside of the given CIDRs"),
        (arp_reply("10.2.0.32"), {}, "it is outside of the given CIDRs"),
        (dnat("fd01::1"), {}, "it is outside of the given CIDRs"),
        (dnat(GONE), {"cidrs": ["10.1.0.0/27"]}, "it is outside of the given CIDRs"),
        (dnat(GONE), {"keep": [GONE]}, "the config keeps its address"),
        (arp_reply(OWN, NIC_MAC), {}, "its MAC is that of"),
        (dnat(GATEWAY), {}, "it is the gateway of a route"),
        (dnat(GONE, uplink="eth1"), {}, "it is for frames from eth1, not from eth0"),
        (dnat(GONE), {"uplink": "eth1"}, "it is for frames from eth0, not from eth1"),
        (dnat(GONE, NIC_MAC), {}, "its MAC is that of"),
        (arp_reply(GONE, NIC_MAC), {}, "its MAC is that of"),
        (dnat(GONE, LIVE_MAC), {}, "the pod behind azvlive has this MAC"),
    ],
)
def test_a_rule_that_stays_says_why(line: str, fields: dict[str, Any], reason: str) -> None:
    found = plan(only(rules=(line,)), **fields)
    assert not found.removed
    assert why(found.kept, line).startswith(reason)


def test_rules_of_another_shape_are_counted_and_never_named() -> None:
    lines = (SNAT, ARP_REPLIES, dnat(GONE).replace(str(GONE), "10.1.0.0/24"), dnat(GONE) + " -c 1 2")
    assert plan(only(rules=lines)) == AzureVnetReport(other_rules=4)


def test_each_duplicate_of_a_rule_goes() -> None:
    assert [item.what for item in plan(only(rules=(dnat(GONE), dnat(GONE)))).removed] == [dnat(GONE), dnat(GONE)]


def test_a_half_done_add_is_protected_by_the_pod_end_of_its_pair() -> None:
    pair = (
        Interface("azvnew", "aa:aa:aa:aa:aa:08", master="azure0", far_mac=GONE_MAC),
        Interface("azvnew2", GONE_MAC, far_mac="aa:aa:aa:aa:aa:08"),
    )
    assert not plan(node_state(interfaces=(*INTERFACES, *pair))).removed


def test_a_pod_whose_pair_has_been_renamed_is_told_by_the_bridge_that_it_is_a_port_of() -> None:
    renamed = Interface("pod8", "aa:aa:aa:aa:aa:08", master="azure0", far_mac=GONE_MAC)
    found = plan(node_state(interfaces=(*INTERFACES, renamed)), DEAD)
    assert not found.removed
    assert why(found.kept, dnat(GONE)) == "the pod behind pod8 has this MAC"
    # Routed, by another CNI: what is in the bridge is none of its own.
    routed = attrs.evolve(renamed, master=None)
    assert dnat(GONE) in {item.what for item in plan(node_state(interfaces=(*INTERFACES, routed)), DEAD).removed}


def test_what_is_left_at_an_address_that_the_host_has_now_goes_and_the_nodes_own_rule_stays() -> None:
    found = plan(only(rules=(SNAT, arp_reply(OWN, NIC_MAC), arp_reply(OWN), dnat(OWN))))
    assert {item.what for item in found.removed} == {arp_reply(OWN), dnat(OWN)}


def test_a_pod_that_has_changed_its_mac_is_told_by_what_the_bridge_has_seen_behind_its_pair() -> None:
    changed = attrs.evolve(INTERFACES[-1], far_mac="a2:06:00:20:0b:99", seen_macs=(LIVE_MAC,))
    found = plan(node_state(interfaces=(*INTERFACES[:-1], changed)))
    assert {item.what for item in found.removed} == {*GONE_RULES, neighbour(GONE)}
    assert why(found.kept, LIVE_RULES[0]) == "the bridge has seen this MAC on azvlive"


# --- tunnel mode -------------------------------------------------------------------------------------------------


def test_in_tunnel_mode_the_mac_that_frames_go_to_decides() -> None:
    rules = (arp_reply(GONE, TUNNEL_MAC), dnat(GONE), arp_reply(LIVE, TUNNEL_MAC), dnat(LIVE, LIVE_MAC))
    found = plan(only(rules=rules))
    assert {item.what for item in found.removed} == {rules[0], rules[1]}
    assert why(found.kept, rules[2]) == "the pod behind azvlive has this MAC"


def test_in_tunnel_mode_any_live_mac_of_the_address_keeps_the_arp_reply() -> None:
    rules = (arp_reply(LIVE, TUNNEL_MAC), dnat(LIVE, LIVE_MAC), dnat(LIVE, GONE_MAC), dnat(LIVE, "a2:06:00:20:0b:01"))
    found = plan(only(rules=rules))
    assert {item.what for item in found.kept} == {rules[0], rules[1]}


def test_an_arp_reply_alone_in_tunnel_mode_goes_unless_a_pod_is_just_being_added() -> None:
    lone = arp_reply(GONE, TUNNEL_MAC)
    assert [item.what for item in plan(only(rules=(lone, *LIVE_RULES))).removed] == [lone]
    adding = Interface("azvnew", "aa:aa:aa:aa:aa:08", master="azure0", far_mac="a2:06:00:20:0b:08")
    found = plan(only(rules=(lone, *LIVE_RULES), interfaces=(*INTERFACES, adding)))
    assert not found.removed
    assert "no rule says where frames for the pod behind azvnew go" in why(found.kept, lone)
    # What the state gives it already: it has been added, and has another address.
    added = ("azvnew", "a2:06:00:20:0b:08", "10.1.0.35")
    assert plan(only(rules=(lone, *LIVE_RULES), interfaces=(*INTERFACES, adding)), added).removed


@pytest.mark.parametrize("far_mac", ["a2:06:00:20:0b:08", None])
@pytest.mark.parametrize("endpoints", [(), (DEAD,)])
def test_in_tunnel_mode_a_half_done_add_keeps_its_arp_reply_beside_the_frames_rule_of_who_had_the_address(
    far_mac: str | None, endpoints: tuple[tuple[str, str, str], ...]
) -> None:
    rules = (arp_reply(GONE, TUNNEL_MAC), arp_reply(GONE, TUNNEL_MAC), dnat(GONE))
    adding = Interface("azvnew", "aa:aa:aa:aa:aa:08", master="azure0", far_mac=far_mac)
    found = plan(only(rules=rules, interfaces=(*INTERFACES, adding)), *endpoints)
    assert [item.what for item in found.kept if item.what != rules[2]] == [*rules[:2]]


def test_an_arp_reply_in_tunnel_mode_stays_with_the_nics_own_rule() -> None:
    rules = (arp_reply(GONE, TUNNEL_MAC), dnat(GONE, NIC_MAC))
    assert not plan(only(rules=rules)).removed


# --- what can't be read ------------------------------------------------------------------------------------------


def test_a_pod_end_that_cant_be_read_keeps_all_that_may_be_its_pods() -> None:
    found = plan(node_state(interfaces=UNREADABLE))
    assert not found.removed
    for what in (*GONE_RULES, neighbour(GONE)):
        assert why(found.kept, what) == "nothing tells what is behind azvdark: this may be its pod's"


def test_what_the_state_knows_to_be_a_gone_pods_goes_all_the_same() -> None:
    found = plan(node_state(interfaces=UNREADABLE), DEAD)
    assert {item.what for item in found.removed} == {*GONE_RULES[:2], neighbour(GONE)}
    # A pod with the same address and another MAC isn't known to be gone.
    second = dnat(GONE, "a2:06:00:20:0b:01")
    found = plan(only(rules=(dnat(GONE), second), interfaces=UNREADABLE), DEAD)
    assert [item.what for item in found.removed] == [dnat(GONE)]


# --- neighbours --------------------------------------------------------------------------------------------------


def test_a_permanent_neighbour_goes_with_a_stale_rule_or_a_dead_endpoint_of_its_address_and_mac() -> None:
    entry = neighbour(GONE)
    with_rule = plan(only(rules=(SNAT, dnat(GONE)), neighbours=(entry,)))
    assert why(with_rule.removed, entry) == "the pod that had this address and MAC is gone"
    assert [item.what for item in plan(only(rules=(SNAT,), neighbours=(entry,)), DEAD).removed] == [entry]
    another_uplinks = dnat(GONE, uplink="eth1")
    for others in (dnat(GONE, "a2:06:00:20:0b:01"), dnat("10.1.0.35"), arp_reply(GONE, TUNNEL_MAC), another_uplinks):
        found = plan(only(rules=(SNAT, others), neighbours=(entry,)))
        assert why(found.kept, entry) == "nothing shows that azure-vnet made it"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (neighbour(LIVE, LIVE_MAC), "the pod behind azvlive has this MAC"),
        (neighbour(GONE, TUNNEL_MAC), "it goes to the fabric, not to a pod"),
        (neighbour(GONE, NIC_MAC), "its MAC is that of"),
        (neighbour(GATEWAY), "it is the gateway of a route"),
        (neighbour("10.2.0.32"), "it is outside of the given CIDRs"),
    ],
)
def test_a_neighbour_that_stays_says_why(entry: Neighbour, reason: str) -> None:
    rules = (dnat(GONE), arp_reply(GONE, TUNNEL_MAC), *LIVE_RULES)
    assert why(plan(only(rules=rules, neighbours=(entry,)), DEAD).kept, entry).startswith(reason)


def test_where_the_rules_were_flushed_a_neighbour_goes_whose_mac_nobody_on_the_bridge_has() -> None:
    entries = (neighbour(GONE), neighbour(LIVE, LIVE_MAC), neighbour("10.1.0.40", TUNNEL_MAC))
    found = plan(only(neighbours=entries))
    assert [item.what for item in found.removed] == [entries[0]]
    assert why(found.removed, entries[0]).startswith("azure-vnet's rules were flushed")
    assert not plan(only(neighbours=entries, interfaces=UNREADABLE)).removed
    # Rules that nobody looked at may be there.
    assert not plan(only(neighbours=entries, notes=("legacy",))).removed
    seen = attrs.evolve(INTERFACES[1], seen_macs=(GONE_MAC,))
    assert not plan(only(neighbours=entries, interfaces=(*INTERFACES, seen))).removed


# --- the plan itself ---------------------------------------------------------------------------------------------


def test_without_anything_there_is_nothing_to_do() -> None:
    assert plan(NodeState(notes=("no ebtables",))) == AzureVnetReport(notes=("no ebtables",))


def test_nothing_is_called_left_only_if_all_was_looked_at() -> None:
    nothing = "azure-vnet has left nothing here"
    assert nothing in report_text(plan(NodeState()))
    text = report_text(plan(NodeState(notes=("no ebtables",))))
    assert nothing not in text
    assert "there is nothing to remove among what could be read\nnote: no ebtables" in text


def test_a_plan_is_json() -> None:
    document = plan(node_state(notes=("legacy",))).to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == 1
    assert document["notes"] == ["legacy"]
    assert document["removed"][0] == {
        "kind": "rule",
        "object": arp_reply(GONE),
        "reason": "no pod here has this MAC any more",
    }
    assert [item["object"] for item in document["removed"] if item["kind"] != "rule"] == [
        f"{GONE} dev azure0 lladdr {GONE_MAC} PERMANENT"
    ]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_plan_is_lines_for_people_below_their_reasons() -> None:
    lines = plain(report_text(plan(node_state(notes=("legacy rules aren't looked at",))), "would go")).splitlines()
    assert lines[:4] == [
        "would go, because no pod here has this MAC any more:",
        f"  - rule       {GONE!s:15}  arpreply {GONE_MAC}",
        f"  - rule       {GONE!s:15}  dnat {GONE_MAC} from eth0",
        f"  - rule       {GONE6!s:15}  dnat {GONE_MAC} from eth0",
    ]
    assert sum(line.startswith("  - ") for line in lines) == 4
    assert sum(line.startswith("  = ") for line in lines) == 4
    assert lines[-3:] == [
        "left alone: 2 rules of others",
        "would go: 4 in all",
        "note: legacy rules aren't looked at",
    ]
    assert "azure-vnet has left nothing here" in report_text(AzureVnetReport())


def test_a_reason_is_said_once_and_no_object_of_ipv4_is_wider_than_80_columns() -> None:
    many = [IPv4Address("10.1.0.100") + number for number in range(100)]
    stale = tuple(rule for address in many for rule in (arp_reply(address), dnat(address)))
    text = plain(report_text(plan(node_state(rules=stale, neighbours=tuple(map(neighbour, many))))))
    assert text.count("no pod here has this MAC any more") == 1
    assert max(len(line) for line in text.splitlines() if line.startswith("  ")) <= 80
    assert "removed: 300 in all" in text
