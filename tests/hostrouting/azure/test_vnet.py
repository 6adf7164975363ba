"""Tests that the azure-vnet clean-up removes only leftovers, explains what it keeps, and uses
locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import attrs
import pytest
from azure_fakes import FakeBridgeNode
from hypothesis import given
from hypothesis import strategies as st
from stale import (
    ARP_REPLIES,
    GATEWAY,
    GONE,
    GONE6,
    GONE_MAC,
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
    networking,
    node_state,
    state,
)

import phases
from hostrouting import Host, Layout
from hostrouting.azure import (
    AzureVnetError,
    AzureVnetReport,
    HostNetworking,
    Interface,
    Neighbour,
    NodeState,
    RemoveStaleAzureVnet,
)
from hostrouting.azure.vnet.leftovers import AzureVnetItem, plan_cleaning
from hostrouting.azure.vnet.parse import Endpoint, PodRule, parse_endpoints, parse_pod_rule
from hostrouting.azure.vnet.tasks import LOCK_FILE, STATE_FILE, plan_stale
from hostrouting.cli.azure.vnet import report_text
from hostrouting.model.errors import FileError
from hostrouting.testing import FakeKernel, FakeSystemd
from phases import CancelScope
from phases.testing import FakeClock

DEAD = ("azvgone", GONE_MAC, str(GONE))
UPLINKS_MAC = "its MAC is that of an interface of this node"
RUNNING = "a running pod has this MAC"
OUTSIDE = "it is outside of the given CIDRs"


def at(
    mac: str | None, name: str = "azvnew", master: str | None = "azure0", **more: Any
) -> Interface:
    """Return the host end of a pod's veth pair."""
    return Interface(name, "aa:aa:aa:aa:aa:08", master=master, far_mac=mac, **more)


def plan(
    node: NodeState, *endpoints: tuple[str, str | None, str], **fields: Any
) -> AzureVnetReport:
    return plan_cleaning(config(**fields), node, parse_endpoints(state(*endpoints)))


def only(*rules: str, **fields: Any) -> NodeState:
    return node_state(**({"rules": rules, "neighbours": ()} | fields))


def of(items: tuple[AzureVnetItem, ...]) -> set[str | Neighbour]:
    return {item.what for item in items}


def why(items: tuple[AzureVnetItem, ...], what: str | Neighbour) -> tuple[str, str | None]:
    """Return the reason and interface for one of the given items."""
    (reason,) = {(item.reason, item.interface) for item in items if item.what == what}
    return reason


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fields", "reason"),
    [
        *(
            (each, {}, OUTSIDE)
            for each in (dnat("10.2.0.32"), arp_reply("10.2.0.32"), dnat("fd01::1"))
        ),
        (dnat(GONE), {"cidrs": ["10.1.0.0/27"]}, OUTSIDE),
        (dnat(GONE), {"keep": [GONE]}, "the config keeps its address"),
        (dnat(GATEWAY), {}, "it is the gateway of a route"),
        (dnat(GONE, uplink="eth1"), {}, "it is for frames from eth1, not from eth0"),
        (dnat(GONE), {"uplink": "eth1"}, "it is for frames from eth0, not from eth1"),
        *(
            (each, {}, UPLINKS_MAC)
            for each in (arp_reply(OWN, NIC_MAC), dnat(GONE, NIC_MAC), arp_reply(GONE, NIC_MAC))
        ),
        (dnat(GONE, LIVE_MAC), {}, RUNNING),
    ],
)
def test_a_kept_rule_has_its_reason(line: str, fields: dict[str, Any], reason: str) -> None:
    found = plan(only(line), **fields)
    assert not found.removed
    assert why(found.kept, line)[0] == reason


FRAMES = dnat(GONE)
# In tunnel mode, the ARP answers for all pods have the same MAC.
LONE = arp_reply(GONE, TUNNEL_MAC)
NEW_MAC = "a2:06:00:20:0b:08"


@pytest.mark.parametrize(
    ("rules", "interfaces", "endpoints", "keeps"),
    [
        ((FRAMES,), (at(None, "veth9", None),), [("veth9", GONE_MAC, str(GONE))], "veth9"),
        # The MAC is unknown.
        ((FRAMES,), (at(None, "veth9", None),), [("veth9", None, str(GONE))], "veth9"),
        ((FRAMES,), (at(None, "veth9", None),), [("veth9", LIVE_MAC, str(GONE))], None),
        ((FRAMES,), (at(None, "veth9", None),), [("veth9", GONE_MAC, str(LIVE))], None),
        ((FRAMES,), (at(GONE_MAC),), [], "azvnew"),  # an ADD that isn't finished
        # Renamed, but still a port of the bridge.
        ((FRAMES,), (at(GONE_MAC, "pod8"),), [DEAD], "pod8"),
        ((FRAMES,), (at(GONE_MAC, "pod8", None),), [DEAD], None),  # a routed pod of another CNI
        # KubeVirt changes the MAC of the pod end.
        ((FRAMES,), (at("a2:06:00:20:0b:99", seen_macs=(GONE_MAC,)),), [], "azvnew"),
        ((FRAMES,), (at(None),), [], "azvnew"),  # the MAC can't be read, so it may be the same
        ((FRAMES,), (at(None),), [DEAD], None),
        ((FRAMES,), (at(None),), [("azvgone", "a2:06:00:20:0b:01", str(GONE))], "azvnew"),
        # In tunnel mode the rule for frames decides.
        ((LONE, FRAMES), (), [], None),
        ((LONE, dnat(GONE, LIVE_MAC)), (), [], "azvlive"),
        ((LONE, dnat(GONE, LIVE_MAC), FRAMES, dnat(GONE, "a2:06:00:20:0b:01")), (), [], "azvlive"),
        ((LONE, dnat(GONE, NIC_MAC)), (), [], "azure0"),
        ((LONE,), (), [], None),
        ((LONE,), (at(NEW_MAC),), [], "azvnew"),  # a pod is being added
        ((LONE,), (at(NEW_MAC),), [("azvnew", NEW_MAC, "10.1.0.35")], None),
        ((LONE, FRAMES), (at(NEW_MAC),), [], "azvnew"),
        ((LONE, FRAMES), (at(NEW_MAC),), [DEAD], "azvnew"),
        ((LONE, FRAMES), (at(None),), [DEAD], "azvnew"),
    ],
)
def test_an_interface_keeps_the_first_rule(
    rules: tuple[str, ...],
    interfaces: tuple[Interface, ...],
    endpoints: list[tuple[str, str | None, str]],
    keeps: str | None,
) -> None:
    """Without an interface that keeps it, the first rule goes."""
    found = plan(
        only(*rules, dnat(LIVE, LIVE_MAC), interfaces=(*INTERFACES, *interfaces)), *endpoints
    )
    assert why(found.kept if keeps else found.removed, rules[0])[1] == keeps
    assert rules[0] not in of(found.removed if keeps else found.kept)


def test_other_shapes_are_counted_and_duplicates_removed() -> None:
    lines = (
        SNAT,
        ARP_REPLIES,
        dnat(GONE).replace(str(GONE), "10.1.0.0/24"),
        dnat(GONE) + " -c 1 2",
    )
    assert plan(only(*lines)) == AzureVnetReport(other_rules=4)
    assert len(plan(only(dnat(GONE), dnat(GONE))).removed) == 2


# --- neighbours -----------------------------------------------------------------------------------


UNKNOWN_MAKER = "nothing shows that azure-vnet made it"


@pytest.mark.parametrize(
    ("rules", "entry", "endpoints", "reason"),
    [
        ((dnat(GONE),), neighbour(GONE), (), None),
        ((SNAT,), neighbour(GONE), (DEAD,), None),
        *(
            # After the rules have been flushed, nothing proves that azure-vnet added the neighbour,
            # so it is kept.
            ((rule,), neighbour(GONE), (), UNKNOWN_MAKER)
            for rule in (
                SNAT,
                dnat(GONE, "a2:06:00:20:0b:01"),
                dnat("10.1.0.35"),
                LONE,
                dnat(GONE, uplink="eth1"),
            )
        ),
        *(
            ((FRAMES, LONE, *LIVE_RULES), entry, (DEAD,), reason)
            for entry, reason in (
                (neighbour(LIVE, LIVE_MAC), RUNNING),
                (neighbour(GONE, TUNNEL_MAC), "it goes to the fabric, not to a pod"),
                (neighbour(GONE, NIC_MAC), UPLINKS_MAC),
                (neighbour(GATEWAY), "it is the gateway of a route"),
                (neighbour("10.2.0.32"), OUTSIDE),
            )
        ),
    ],
)
def test_a_neighbour_needs_a_reason_to_be_removed(
    rules: tuple[str, ...],
    entry: Neighbour,
    endpoints: tuple[tuple[str, str, str], ...],
    reason: str | None,
) -> None:
    found = plan(only(*rules, neighbours=(entry,)), *endpoints)
    items = found.removed if reason is None else found.kept
    assert why(items, entry)[0] == (reason or "the pod that had this address and MAC is gone")


# --- any pods -------------------------------------------------------------------------------------


@attrs.frozen
class Pod:
    """A pod created by azure-vnet, and its leftovers.

    Its MAC and interface are derived from its unique number.
    """

    number: int
    at: int
    is_alive: bool
    is_listed: bool
    parts: frozenset[str]

    @property
    def made(self) -> dict[str, str | Neighbour]:
        address, mac = f"10.1.0.{self.at}", f"a2:00:00:00:00:{self.number:02x}"
        made: dict[str, str | Neighbour] = {
            "dnat": dnat(address, mac),
            "arpreply": arp_reply(address, mac),
        }
        made["neighbour"] = neighbour(address, mac)
        return {part: what for part, what in made.items() if part in self.parts}


parts = st.frozensets(st.sampled_from(["dnat", "arpreply", "neighbour"]))
pods = st.builds(
    Pod, st.integers(1, 99), st.integers(100, 103), st.booleans(), st.booleans(), parts
)


@given(st.lists(pods, max_size=6, unique_by=lambda pod: pod.number), st.randoms())
def test_only_leftovers_of_gone_pods_are_removed(them: list[Pod], shuffle: random.Random) -> None:
    """The order doesn't matter, even if pods have shared an address.

    A second plan removes only what is left.
    """
    names = {pod: f"azv{pod.number}" for pod in them}
    ends = [at(f"a2:00:00:00:00:{pod.number:02x}", names[pod]) for pod in them if pod.is_alive]
    made = [what for pod in them for what in pod.made.values()]
    shuffle.shuffle(made)
    node = only(
        *(what for what in made if isinstance(what, str)),
        neighbours=tuple(what for what in made if not isinstance(what, str)),
        interfaces=(*INTERFACES, *shuffle.sample(ends, len(ends))),
    )
    listed = [
        Endpoint(names[pod], f"a2:00:00:00:00:{pod.number:02x}", (IPv4Address(f"10.1.0.{pod.at}"),))
        for pod in them
        if pod.is_listed
    ]
    goes = {
        what
        for pod in them
        for part, what in pod.made.items()
        if not pod.is_alive and (part != "neighbour" or pod.is_listed or len(pod.made) > 1)
    }
    found = plan_cleaning(config(), node, listed)
    assert (of(found.removed), of(found.kept)) == (goes, {*made} - goes)
    crashed = attrs.evolve(
        node, neighbours=tuple(one for one in node.neighbours if one not in goes)
    )
    left = attrs.evolve(crashed, rules=tuple(one for one in node.rules if one not in goes))
    for then, rest in (
        (crashed, {one for one in goes if isinstance(one, str)}),
        (left, set[object]()),
    ):
        again = plan_cleaning(config(), then, listed)
        assert (of(again.removed), again.kept) == (rest, found.kept)


# --- as text --------------------------------------------------------------------------------------


def test_a_plan_is_lines_below_their_reasons() -> None:
    text = re.sub(
        r"\x1b\[[0-9;]*m", "", report_text(plan(node_state(notes=("legacy",))), "would go")
    )
    lines = text.splitlines()
    assert lines[:3] == [
        "would go, because no pod here has this MAC any more:",
        f"  - rule       {GONE!s:15}  arpreply {GONE_MAC}",
        f"  - rule       {GONE!s:15}  dnat {GONE_MAC} from eth0",
    ]
    assert f"stays, because {RUNNING}:" in lines
    assert f"  = rule       {LIVE!s:15}  dnat {LIVE_MAC} from eth0  (azvlive)" in lines
    assert lines[-2:] == ["would go: 4 in all", "note: legacy"]


# --- parsing --------------------------------------------------------------------------------------


CHANGES = [
    *(
        ("PREROUTING", "POSTROUTING"),
        ("PREROUTING", "own"),
        ("-i eth0", "-i ! eth0"),
        ("-i eth0 ", ""),
    ),
    *((str(GONE), other) for other in ("10.1.0.0/24", "10.1.0.32/32", f"! {GONE}", "10.1.0.999")),
    *(
        ("-i eth0", "-i eth0 --logical-in azure0"),
        ("-p IPv4", "-p IPv4 -d Unicast"),
        ("-p IPv4", "-p IPv6"),
    ),
    *(("-j dnat", "--ip-proto tcp -j dnat"), ("--dnat-target ACCEPT", "--dnat-target CONTINUE")),
    *(
        (" --dnat-target ACCEPT", ""),
        ("-j dnat --to-dst", "-j redirect --to-dst"),
        ("ACCEPT", "ACCEPT -c 1 2"),
    ),
    ("-A", "[0:0] -A"),
]
ARP_CHANGES = [("-p ARP", "-p ARP -i eth0"), ("Request", "Reply"), ("--arp-ip-dst", "--arp-ip-src")]
PODS = {
    arp_reply(GONE): PodRule(GONE, GONE_MAC),
    dnat(GONE): PodRule(GONE, GONE_MAC, "eth0"),
    dnat(GONE6): PodRule(GONE6, GONE_MAC, "eth0"),
    **dict.fromkeys((SNAT, ARP_REPLIES, arp_reply(GONE) + " --arpreply-target ACCEPT")),
    **dict.fromkeys(dnat(GONE).replace(*change) for change in CHANGES),
    **dict.fromkeys(
        dnat(GONE6).replace(str(GONE6), other) for other in ("fd00::/64", f"{GONE6}/ffff:ffff::")
    ),
    **dict.fromkeys(
        arp_reply(GONE).replace(*change) for change in (*ARP_CHANGES, (GONE_MAC, "a2:06:00:20:0b"))
    ),
}


@pytest.mark.parametrize("line", PODS)
def test_only_two_exact_shapes_are_a_pods_rules(line: str) -> None:
    rule = parse_pod_rule(line)
    assert rule == PODS[line]
    assert rule is None or not rule.is_tunnel


def with_endpoint(**fields: Any) -> str:
    document = json.loads(state(("azv1", GONE_MAC, "10.1.0.32")))
    document["Network"]["ExternalInterfaces"]["eth0"]["Networks"]["azure"]["Endpoints"][
        "0-eth0"
    ] |= fields
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("", ()),
        (" \n", ()),
        ("{}", ()),
        ('{"Network": null, "Other": 5}', ()),
        (
            (
                '{"Network": {"ExternalInterfaces": '
                '{"eth0": {"Networks": {"azure": {"Endpoints": null}}, "x": 1}}}}'
            ),
            (),
        ),
        (
            (
                '{"Network": {"ExternalInterfaces": '
                '{"eth0": null, "eth1": {"Networks": {"a": null}}}}}'
            ),
            (),
        ),
        (with_endpoint(IPAddresses=None, New={"a": 1}), (Endpoint("azv1", GONE_MAC, ()),)),
        (
            state(("azv1", GONE_MAC, "10.1.0.32"), ("azv2", None, "fd00::33")),
            (
                Endpoint("azv1", GONE_MAC, (IPv4Address("10.1.0.32"),)),
                Endpoint("azv2", None, (IPv6Address("fd00::33"),)),
            ),
        ),
    ],
)
def test_endpoints_are_read_in_gos_format(text: str, endpoints: tuple[Endpoint, ...]) -> None:
    assert parse_endpoints(text) == endpoints


@pytest.mark.parametrize(
    "text",
    [
        '{"Network": ',
        "\udcff\udcfe",
        "[" * 100_000,
        "[]",
        '{"Network": []}',
        '{"Network": {"ExternalInterfaces": {"eth0": 5}}}',
        with_endpoint(MacAddress="%%%"),
        with_endpoint(MacAddress="AAAA"),
        with_endpoint(MacAddress="ä"),
        with_endpoint(MacAddress=5),
        with_endpoint(HostIfName=["azv1"]),
        with_endpoint(IPAddresses=["10.1.0.32"]),
        with_endpoint(IPAddresses=[{"IP": "10.1.0"}]),
    ],
)
def test_an_invalid_state_is_an_error(text: str) -> None:
    with pytest.raises(
        AzureVnetError,
        match="can't tell which pods azure-vnet still serves: /x can't be understood: .",
    ):
        parse_endpoints(text, "/x")


# --- the task -------------------------------------------------------------------------------------


LEFT = (*NODE_RULES, *LIVE_RULES)


@pytest.fixture
def node() -> FakeBridgeNode:
    return FakeBridgeNode(node_state())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(FakeKernel(), FakeSystemd(), Layout(tmp_path))


def clean(
    host: Host, node: FakeBridgeNode, scope: CancelScope | None = None, **fields: Any
) -> AzureVnetReport:
    return phases.run(RemoveStaleAzureVnet(networking(**fields), host=host, node=node), scope=scope)


def test_neighbours_are_removed_before_rules_and_both_verified(
    host: Host, node: FakeBridgeNode
) -> None:
    before = node.state
    assert plan_stale(networking(), host=host, node=node).removed == clean(host, node).removed
    assert node.calls == ["look", "look", "remove_neighbours", "remove_rules", "look"]
    assert node.state == attrs.evolve(before, rules=LEFT, neighbours=before.neighbours[:1])
    assert not clean(host, node).removed
    assert not host.layout.of(LOCK_FILE).parent.exists()


class Lying(FakeBridgeNode):
    """A node whose restore command reports success without doing anything."""

    def remove_rules(self, rules: Sequence[str]) -> None:
        pass


class Failing(FakeBridgeNode):
    """A node whose batch fails because a rule has changed."""

    def remove_rules(self, rules: Sequence[str]) -> None:
        raise AzureVnetError("can't delete 3 rules", errno=1)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Lying(node_state()), "3 of 4 are still there, or there again, as -A PREROUTING"),
        (
            Failing(node_state()),
            "can't delete 3 rules; no rule was deleted, but 1 neighbours before that",
        ),
    ],
)
def test_a_leftover_that_was_not_removed_is_an_error(
    host: Host, node: FakeBridgeNode, message: str
) -> None:
    with pytest.raises(AzureVnetError, match=message) as caught:
        clean(host, node)
    assert caught.value.is_not_permitted is isinstance(node, Failing)
    clean(host, done := FakeBridgeNode(node.state))  # the next run continues from there
    assert (done.state.rules, len(done.state.neighbours)) == (LEFT, 1)


def test_nothing_is_done_without_a_config_or_in_an_image(
    tmp_path: Path, host: Host, node: FakeBridgeNode
) -> None:
    assert plan_stale(HostNetworking(), host=host, node=node) == AzureVnetReport()
    assert (
        phases.run(RemoveStaleAzureVnet(HostNetworking(), host=host, node=node))
        == AzureVnetReport()
    )
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    with pytest.raises(AzureVnetError, match="has no kernel to ask"):
        clean(Host.image(tmp_path), node)
    with pytest.raises(AzureVnetError, match="has no kernel to ask"):
        plan_stale(networking(), host=Host.image(tmp_path))
    assert node.calls == []


@pytest.mark.parametrize(
    ("lock", "seconds"), [(LOCK_FILE, 5), (LOCK_FILE, 0), ("/run/aks-flex-node/lock", 60)]
)
def test_a_held_lock_is_an_error(host: Host, node: FakeBridgeNode, lock: str, seconds: int) -> None:
    """The paths must be exact; otherwise the lock wouldn't exclude other programs."""
    assert (STATE_FILE, LOCK_FILE) == (
        "/var/run/azure-vnet.json",
        "/var/run/azure-vnet/azure-vnet.lock",
    )
    path = host.layout.of(lock)
    path.parent.mkdir(parents=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(FileError, match=f"{path}: another run has held it for {seconds} s"):
            clean(host, node, CancelScope(clock=FakeClock()), lock_wait_seconds=min(seconds, 5))
        if lock != LOCK_FILE:
            assert plan_stale(networking(), host=host, node=node).removed  # a plan doesn't wait
    assert "remove_rules" not in node.calls


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text('{"Network": {'), "can't be understood"),
        (lambda path: path.mkdir(), "can't read .*: Is a directory"),
        (os.mkfifo, "is not a regular file"),
    ],
)
def test_an_unreadable_state_removes_nothing(
    host: Host, node: FakeBridgeNode, make: Any, message: str
) -> None:
    path = host.layout.of(STATE_FILE)
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises((AzureVnetError, FileError), match=message):
        clean(host, node)
    assert set(node.calls) == {"look"}
