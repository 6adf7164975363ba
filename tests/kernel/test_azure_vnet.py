"""A real bridge, real ebtables, a live pod and what gone ones have left: exactly that goes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from programs import attempt, tool

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, StaleAzureVnet
from hostrouting.azure.errors import AzureVnetError
from hostrouting.azure.vnet import linux, places
from hostrouting.azure.vnet.linux import LinuxBridgeNode
from hostrouting.azure.vnet.model import HostRoute, Neighbour, NeighbourState
from hostrouting.azure.vnet.tasks import RemoveStaleAzureVnet
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.kernel._namespaces import Namespace
from hostrouting.testing import FakeKernel, FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from hostrouting.azure.vnet.plan import AzureVnetReport
    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("ebtables")]

NIC_MAC, GONE_MAC, LIVE_MAC = "00:0d:3a:01:02:03", "a2:06:00:20:0b:06", "a2:06:00:20:0b:07"
GONE, GONE6, LIVE, OWN, GATEWAY = "10.1.0.32", "fd00::32", "10.1.0.33", "10.1.0.4", "10.1.0.1"
CONFIG = HostNetworking(stale_azure_vnet=StaleAzureVnet(["10.1.0.0/24", "fd00::/64"], lock_wait_seconds=0))


def ip(text: str) -> str:
    return tool("ip", *text.split())


def nat(action: str, spec: str) -> None:
    """As azure-vnet does it, one rule a call."""
    tool("ebtables-nft", "-t", "nat", action, *spec.split())


def arp_reply(address: str, mac: str) -> str:
    return f"PREROUTING -p ARP --arp-op Request --arp-ip-dst {address} -j arpreply --arpreply-mac {mac} --arpreply-target DROP"


def dnat(address: str, mac: str) -> str:
    family, option = ("IPv4", "--ip-dst") if ip_address(address).version == 4 else ("IPv6", "--ip6-dst")
    return f"PREROUTING -p {family} -i eth0 {option} {address} -j dnat --to-dst {mac} --dnat-target ACCEPT"


def saved() -> list[str]:
    """The rules of all tables, without the dates."""
    return [line for line in tool("ebtables-nft-save").splitlines() if not line.startswith("#")]


def serve(address: str, mac: str) -> None:
    """What azure-vnet adds for a pod, but for its pair."""
    if ip_address(address).version == 4:
        nat("-A", arp_reply(address, mac))
    nat("-A", dnat(address, mac))
    ip(f"neighbour replace {address} dev azure0 lladdr {mac} nud permanent")


def add_pair(name: str, mac: str) -> None:
    ip(f"link add {name} type veth peer name {name}2 address {mac}")
    ip(f"link set {name} master azure0 up")


def move_pod_end(name: str, pod: Namespace) -> None:
    tool("ip", "link", "set", f"{name}2", "netns", f"/proc/{os.getpid()}/fd/{pod.fd}")


@pytest.fixture
def node(kernel: NamespaceKernel) -> LinuxBridgeNode:
    """A node of azure-vnet in bridge mode, with the rules, neighbours and routes that are its own."""
    ip(f"link add eth0 address {NIC_MAC} type veth peer name fabric")
    ip("link add azure0 type bridge")
    ip("link set eth0 master azure0 up")
    ip("link set fabric up")
    ip(f"link set azure0 address {NIC_MAC} up")
    ip(f"address add {OWN}/24 dev azure0")
    ip("-6 address add fd00::4/64 dev azure0 nodad")
    ip(f"route add default via {GATEWAY} dev azure0")
    ip(f"route add 168.63.129.16 via {GATEWAY} dev azure0")
    ip(f"neighbour add {GATEWAY} dev azure0 lladdr 12:34:56:78:9a:bc nud permanent")
    ip(f"neighbour add 10.1.0.40 dev azure0 lladdr {GONE_MAC} nud reachable extern_learn")
    ip("neighbour add 10.1.0.41 dev azure0 lladdr 12:34:56:78:9a:bc nud permanent")
    nat("-A", f"POSTROUTING -s Unicast -o eth0 -j snat --to-src {NIC_MAC} --snat-arp --snat-target ACCEPT")
    nat("-A", "PREROUTING -p ARP -i eth0 --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT")
    nat("-A", arp_reply(OWN, NIC_MAC))
    nat("-A", dnat("10.2.0.9", GONE_MAC))
    nat("-A", dnat(GONE, GONE_MAC).replace("-j dnat", "--ip-proto udp -j dnat"))
    tool("ebtables-nft", "-A", "FORWARD", "-p", "IPv6", "-i", "eth0", "-j", "DROP")
    return LinuxBridgeNode()


@pytest.fixture
def live_pod(node: LinuxBridgeNode) -> Namespace:
    pod = Namespace()
    add_pair("azvlive", LIVE_MAC)
    move_pod_end("azvlive", pod)
    serve(LIVE, LIVE_MAC)
    return pod


@pytest.fixture
def host(node: LinuxBridgeNode, tmp_path: Path) -> Host:
    return Host(FakeKernel(), FakeSystemd(), Layout(tmp_path))


def leave_stale() -> None:
    serve(GONE, GONE_MAC)
    serve(GONE6, GONE_MAC)
    ip(f"route add {GONE} dev azure0")
    ip(f"-6 route add {GONE6} dev azure0")


def clean(host: Host, node: LinuxBridgeNode | None = None) -> AzureVnetReport:
    return phases.run(RemoveStaleAzureVnet(CONFIG, host=host, node=node or LinuxBridgeNode()))


def all_else() -> tuple[list[str], str, str, str]:
    """Everything that must not change, as the tools print it."""
    neighbours = "\n".join(sorted(line.rsplit(" ", 1)[0] for line in ip("neighbour show nud permanent").splitlines()))
    # Without link-local ones, which come a little after their interface.
    return saved(), neighbours, ip("-4 route show table all"), ip("-6 route show root fd00::/16")


# --- what goes, what stays -----------------------------------------------------------------------------------------


def test_what_gone_pods_left_goes_and_every_other_rule_is_the_same_byte_for_byte(
    host: Host, live_pod: Namespace
) -> None:
    before = all_else()
    leave_stale()
    report = clean(host)
    assert all_else() == before
    assert (len(report.removed), report.already_gone, report.rounds) == (7, (), 1)
    kept = {str(item.what): item.reason for item in report.kept}
    assert kept[f"-A {dnat(LIVE, LIVE_MAC)}"] == "the pod behind azvlive has this MAC"
    assert kept[f"-A {dnat('10.2.0.9', GONE_MAC)}"] == "it is outside of the given CIDRs"
    again = clean(host)
    assert (again.removed, again.rounds, again.kept) == ((), 0, report.kept)
    assert all_else() == before


def test_duplicates_go_all_of_them(host: Host, node: LinuxBridgeNode) -> None:
    before = saved()
    for _ in range(3):
        nat("-A", dnat(GONE, GONE_MAC))
    assert len(clean(host).removed) == 3
    assert saved() == before


def test_hundreds_of_rules_go_in_one_batch(host: Host, node: LinuxBridgeNode) -> None:
    before = saved()
    lines = [f"-A {dnat(f'10.1.0.{n}', GONE_MAC)}" for n in range(50, 250)]
    text = "\n".join(["*nat", *lines, "COMMIT", ""])
    tool("ebtables-nft-restore", "--noflush", stdin=text)
    assert len(clean(host).removed) == 200
    assert saved() == before


def test_a_pod_that_ends_leaves_what_the_next_run_removes(host: Host, live_pod: Namespace) -> None:
    assert clean(host).removed == ()
    ip("link delete azvlive")
    assert len(clean(host).removed) == 3


def test_an_endpoint_of_the_state_is_dead_once_its_interface_is_gone(host: Host, node: LinuxBridgeNode) -> None:
    mac = base64.b64encode(bytes.fromhex(GONE_MAC.replace(":", ""))).decode()
    endpoint = {"HostIfName": "azvold", "MacAddress": mac, "IPAddresses": [{"IP": GONE, "Mask": "//8AAA=="}]}
    networks = {"azure": {"Endpoints": {"1-eth0": endpoint}}}
    document = {"Network": {"ExternalInterfaces": {"eth0": {"Networks": networks}}}}
    places.state(host.layout).parent.mkdir(parents=True)
    places.state(host.layout).write_text(json.dumps(document))
    ip(f"neighbour add {GONE} dev azure0 lladdr {GONE_MAC} nud permanent")
    add_pair("azvold", "a2:00:00:00:00:01")
    assert clean(host).removed == ()
    ip("link delete azvold")
    assert [str(item.what) for item in clean(host).removed] == [f"{GONE} dev azure0 lladdr {GONE_MAC} PERMANENT"]


# --- a changed world -----------------------------------------------------------------------------------------------


class Interrupted(LinuxBridgeNode):
    """Lets somebody else do something between a plan and its batch, once."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = [meanwhile]

    def remove_rules(self, rules: object) -> bool:
        if self._meanwhile:
            self._meanwhile.pop()()
        return super().remove_rules(rules)  # type: ignore[arg-type]


def test_a_rule_that_changed_since_the_plan_means_planning_again(host: Host, live_pod: Namespace) -> None:
    before = all_else()
    leave_stale()

    def change() -> None:
        nat("-D", dnat(GONE, GONE_MAC))
        nat("-A", dnat(GONE, "a2:00:00:00:00:09"))

    report = clean(host, Interrupted(change))
    assert report.rounds == 2
    assert [str(item.what) for item in report.already_gone] == [f"-A {dnat(GONE, GONE_MAC)}"]
    assert all_else() == before


def test_a_batch_with_a_rule_that_isnt_there_removes_none(node: LinuxBridgeNode) -> None:
    nat("-A", dnat(GONE, GONE_MAC))
    before = saved()
    there, missing = f"-A {dnat(GONE, GONE_MAC)}", f"-A {dnat(GONE, LIVE_MAC)}"
    assert not node.remove_rules([there, missing])
    assert saved() == before
    assert node.remove_rules([there])
    assert node.remove_rules([])


# --- neighbours and routes -------------------------------------------------------------------------------------------


def test_neighbours_are_seen_as_they_are(node: LinuxBridgeNode) -> None:
    ip("neighbour add 10.1.0.50 dev azure0 lladdr a2:00:00:00:00:50 nud permanent router")
    ip("neighbour add 10.1.0.51 dev azure0 nud failed")
    ip("neighbour add 10.1.0.52 dev fabric lladdr a2:00:00:00:00:52 nud permanent")
    ip("neighbour add fd00::53 dev azure0 lladdr a2:00:00:00:00:53 nud permanent")
    found = {str(one.address): one for one in node.look("azure0").neighbours}
    assert set(found) == {GATEWAY, "10.1.0.40", "10.1.0.41", "10.1.0.50", "10.1.0.51", "fd00::53"}
    permanent = NeighbourState.PERMANENT
    assert found["10.1.0.50"] == Neighbour("azure0", IPv4Address("10.1.0.50"), "a2:00:00:00:00:50", permanent)
    assert found["10.1.0.51"].is_unresolved
    assert [address for address, one in found.items() if one.is_foreign] == ["10.1.0.40"]


def test_a_managed_neighbour_is_somebody_elses(node: LinuxBridgeNode) -> None:
    if attempt("ip", *["neighbour", "add", "10.1.0.54", "dev", "azure0", "managed"]).returncode:
        pytest.skip("this kernel or ip(8) knows no managed neighbours")
    (found,) = (one for one in node.look("azure0").neighbours if str(one.address) == "10.1.0.54")
    assert found.is_foreign


def test_a_neighbour_goes_only_if_it_is_still_what_was_planned(node: LinuxBridgeNode) -> None:
    ip(f"neighbour add {GONE} dev azure0 lladdr {GONE_MAC} nud permanent")
    (planned,) = (one for one in node.look("azure0").neighbours if str(one.address) == GONE)
    ip(f"neighbour replace {GONE} dev azure0 lladdr {LIVE_MAC} nud permanent")
    assert node.remove_neighbours([planned]) == (planned,)
    assert LIVE_MAC in ip(f"neighbour show {GONE}")
    ip(f"neighbour replace {GONE} dev azure0 lladdr {GONE_MAC} nud permanent")
    assert node.remove_neighbours([planned]) == ()
    assert node.remove_neighbours([planned]) == (planned,)


def test_exactly_the_planned_route_goes_and_not_the_first_of_its_destination(node: LinuxBridgeNode) -> None:
    ip(f"route add {GONE} dev azure0 metric 50")
    ip(f"route add {GONE} dev azure0 metric 50 tos 0x10")
    ip(f"route add {GONE} dev azure0 table 100")
    ip(f"route add {GONE} dev fabric metric 60")
    ip(f"-6 route add {GONE6} dev azure0 metric 50")
    ip(f"-6 route add {GONE6} dev fabric metric 70")
    before = ip("-4 route show table all"), ip("-6 route show root fd00::/16")
    there = {route for route in node.look("azure0").routes if str(route.destination) in (GONE, GONE6)}
    assert there == {
        HostRoute(ip_address(GONE), "azure0", 3, 50),
        HostRoute(ip_address(GONE), "azure0", 3, 50, tos=0x10),
        HostRoute(ip_address(GONE), "fabric", 3, 60),
        HostRoute(ip_address(GONE6), "azure0", 3, 50),
        HostRoute(ip_address(GONE6), "fabric", 3, 70),
    }
    for address in (ip_address(GONE), ip_address(GONE6)):
        for missing in (
            HostRoute(address, "azure0", 3, 0 if address.version == 4 else 1024),
            HostRoute(address, "azure0", 4, 50),
            HostRoute(address, "fabric", 3, 50),
            HostRoute(address, "none", 3, 50),
        ):
            assert node.remove_routes([missing]) == (missing,)
    assert (ip("-4 route show table all"), ip("-6 route show root fd00::/16")) == before
    ip(f"route add {GONE} dev azure0")
    ip(f"-6 route add {GONE6} dev azure0")
    assert (
        node.remove_routes(
            [HostRoute(ip_address(GONE), "azure0", 3, 0), HostRoute(ip_address(GONE6), "azure0", 3, 1024)]
        )
        == ()
    )
    assert (ip("-4 route show table all"), ip("-6 route show root fd00::/16")) == before


def test_a_route_that_the_kernel_doesnt_tell_from_another_is_left_and_named(node: LinuxBridgeNode) -> None:
    ip(f"-6 route add {GONE6} dev azure0 metric 50")
    ip(f"-6 route append {GONE6} via fd00::1 dev azure0 metric 50")
    before = all_else()
    with pytest.raises(AzureVnetError, match="the kernel doesn't tell it from another one"):
        node.remove_routes([HostRoute(ip_address(GONE6), "azure0", 3, 50)])
    assert all_else() == before


@pytest.mark.parametrize(
    "twin", [f"via {GATEWAY} dev azure0", "via inet6 fe80::1 dev azure0", "nexthop dev azure0 nexthop dev fabric"]
)
def test_a_route_stays_where_asking_for_it_would_take_somebody_elses(
    host: Host, node: LinuxBridgeNode, twin: str
) -> None:
    leave_stale()
    ip(f"route add 10.1.0.60 {twin}")
    ip("route append 10.1.0.60 dev azure0")
    before = ip("route show 10.1.0.60")
    report = clean(host)
    assert len(report.removed) == 7
    assert {item.reason for item in report.kept if str(item.what).startswith("10.1.0.60 dev azure0 ")} >= {
        "the kernel doesn't tell it from another one that stays"
    }
    with pytest.raises(AzureVnetError, match="the kernel doesn't tell it from another one"):
        node.remove_routes([HostRoute(ip_address("10.1.0.60"), "azure0", 3)])
    assert ip("route show 10.1.0.60") == before


def test_routes_that_differ_in_what_azure_vnet_doesnt_say_go_all_at_once(host: Host, node: LinuxBridgeNode) -> None:
    for more in (f"src {OWN}", "", "scope global", "mtu 1400"):
        ip(f"route append {GONE} dev azure0 {more}")
    report = clean(host)
    assert (len(report.removed), report.rounds) == (4, 1)
    assert ip(f"route show {GONE}") == ""


def test_a_route_for_some_senders_only_is_none_of_azure_vnets(host: Host, node: LinuxBridgeNode) -> None:
    leave_stale()
    ip("-6 route add fd00::60 from fd00::/64 dev azure0")
    before = ip("-6 route show fd00::60")
    assert len(clean(host).removed) == 7
    assert before
    assert ip("-6 route show fd00::60") == before


def test_a_gateway_that_only_a_nexthop_object_names_is_one(host: Host, node: LinuxBridgeNode) -> None:
    ip("-6 nexthop add id 7 via fd00::99 dev azure0")
    ip("-6 route add fd00::/16 nhid 7")
    ip("neighbour add fd00::99 dev azure0 nud failed")
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")
    report = clean(host)
    assert report.removed == ()
    assert "it is the gateway of a route" in [
        item.reason for item in report.kept if str(item.what).startswith("fd00::99 ")
    ]


def test_routes_with_a_gateway_several_hops_or_a_nexthop_object_are_told_apart(node: LinuxBridgeNode) -> None:
    ip(f"route add 10.1.0.60 via {GATEWAY} dev azure0")
    ip("route add 10.1.0.61 nexthop dev azure0 nexthop dev fabric")
    ip("-6 route add fd00::60 via fd00::1 dev azure0")
    ip("-6 route add fd00::61 nexthop via fd00::1 dev azure0 nexthop via fd00::2 dev azure0")
    ip("nexthop add id 7 dev azure0")
    ip("route add 10.1.0.62 nhid 7")
    state = node.look("azure0")
    found = {str(route.destination): (route.has_gateway, route.is_plain) for route in state.routes}
    assert found == {
        "168.63.129.16": (True, True),
        "10.1.0.60": (True, True),
        "10.1.0.61": (False, False),
        "10.1.0.62": (False, False),
        "fd00::60": (True, True),
        "fd00::61": (True, False),
    }
    assert set(map(str, state.gateways)) == {GATEWAY, "fd00::1", "fd00::2"}
    assert {OWN, "fd00::4", "127.0.0.1", "::1"} <= set(map(str, state.addresses))


def test_interfaces_are_seen_with_their_far_ends_in_whichever_namespace(node: LinuxBridgeNode) -> None:
    pod = Namespace()
    add_pair("azvfar", LIVE_MAC)
    move_pod_end("azvfar", pod)
    add_pair("azvnear", GONE_MAC)
    found = {one.name: one for one in node.look("azure0").interfaces}
    assert found["azvfar"].far_mac == LIVE_MAC
    assert (found["azvnear"].far_mac, found["azvnear2"].mac) == (GONE_MAC, GONE_MAC)
    assert (found["azvfar"].master, found["eth0"].master, found["azure0"].master) == ("azure0", "azure0", None)
    assert (found["azure0"].mac, found["azure0"].far_mac) == (NIC_MAC, None)


# --- what can't be done ----------------------------------------------------------------------------------------------


@contextmanager
def path_of(folder: Path, **programs: str) -> Iterator[None]:
    """Nothing but some shell scripts is found where programs are looked for."""
    for name, text in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    with patch.object(linux, "SEARCH_PATH", str(folder)):
        yield


def as_nobody(program: str) -> str:
    return f'PATH={os.environ["PATH"]} exec setpriv --reuid 65534 --clear-groups -- {program} "$@"'


def test_without_leave_no_rule_is_read_or_removed_and_it_says_so(node: LinuxBridgeNode, tmp_path: Path) -> None:
    if subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", "true"], check=False).returncode:
        pytest.skip("root of a user namespace with one user can't become another")
    nat("-A", dnat(GONE, GONE_MAC))
    before = saved()
    save, restore = as_nobody("ebtables-nft-save"), as_nobody("ebtables-nft-restore")
    with path_of(tmp_path, ebtables_nft_save=save, ebtables_nft_restore=restore):
        for bridge in ("azure0", "azure1"):
            with pytest.raises(AzureVnetError, match="can't read ebtables' rules: .*; run as root") as caught:
                node.look(bridge)
            assert caught.value.is_not_permitted
        with pytest.raises(AzureVnetError, match="can't delete 1 rules .*; run as root") as caught:
            node.remove_rules([f"-A {dnat(GONE, GONE_MAC)}"])
        assert caught.value.is_not_permitted
    assert saved() == before


def test_without_leave_no_neighbour_or_route_is_removed_and_it_says_so(
    node: LinuxBridgeNode, as_ordinary_user: Callable[[], AbstractContextManager[None]]
) -> None:
    ip(f"route add {GONE} dev azure0")
    ip(f"-6 route add {GONE6} dev azure0")
    before, state = all_else(), node.look("azure0")
    attempts: list[Callable[[], object]] = [partial(node.remove_neighbours, state.neighbours[:1])]
    attempts += [partial(node.remove_routes, [route]) for route in state.routes if not route.has_gateway]
    assert len(attempts) == 3
    for refused in attempts:
        with as_ordinary_user(), pytest.raises(AzureVnetError, match="run as root") as caught:
            refused()
        assert caught.value.is_not_permitted
    assert all_else() == before


def test_half_an_ebtables_is_an_error_that_names_the_package(host: Host, node: LinuxBridgeNode, tmp_path: Path) -> None:
    nat("-A", dnat(GONE, GONE_MAC))
    before, folder = saved(), tmp_path / "programs"
    folder.mkdir()
    save = f'PATH={os.environ["PATH"]} exec ebtables-nft-save "$@"'
    with (
        path_of(folder, ebtables_nft_save=save),
        pytest.raises(AzureVnetError, match="can't run `ebtables-nft-restore "),
    ):
        clean(host)
    (folder / "ebtables-nft-save").unlink()
    version = "echo 'ebtables 1.8.9 (nf_tables)'"
    with (
        path_of(folder, ebtables=version),
        pytest.raises(AzureVnetError, match="`ebtables-save`: it isn't there; install"),
    ):
        clean(host)
    assert saved() == before


def test_no_ebtables_is_an_error_that_names_the_package_unless_there_is_no_bridge(
    node: LinuxBridgeNode, tmp_path: Path
) -> None:
    with path_of(tmp_path):
        with pytest.raises(AzureVnetError, match="there is no ebtables; install the package"):
            node.look("azure0")
        with pytest.raises(AzureVnetError, match="there is no ebtables; install the package"):
            node.remove_rules(["-A PREROUTING -j ACCEPT"])
        state = node.look("azure1")
    assert (state.rules, state.neighbours) == ((), ())
    assert "there is no bridge azure1" in state.notes[0]
    assert "rules weren't looked at: can't read ebtables' rules: there is no ebtables" in state.notes[1]


def test_a_bridge_that_is_not_there_is_noted_as_its_name_may_be_wrong(node: LinuxBridgeNode) -> None:
    nat("-A", dnat(GONE, GONE_MAC))
    state = node.look("azure1")
    assert f"-A {dnat(GONE, GONE_MAC)}" in state.rules
    assert state.notes == ("there is no bridge azure1; if azure-vnet's has another name, give it as its `bridge`",)


def test_the_legacy_ebtables_alone_is_an_error(node: LinuxBridgeNode, tmp_path: Path) -> None:
    legacy = {"ebtables": "echo 'ebtables v2.0.11 (legacy) (December 2011)'", "ebtables_save": "exit 0"}
    refused = pytest.raises(AzureVnetError, match=r"is the legacy one \(ebtables v2\.0\.11")
    with path_of(tmp_path, **legacy), refused:
        node.look("azure0")


def test_ebtables_by_its_general_name_is_used_if_it_keeps_its_rules_in_nftables(
    node: LinuxBridgeNode, tmp_path: Path
) -> None:
    nat("-A", dnat(GONE, GONE_MAC))
    folders = SEARCH_PATH
    passed_on = {
        name.replace("-", "_"): f'PATH={folders} exec {name.replace("ebtables", "ebtables-nft")} "$@"'
        for name in ("ebtables", "ebtables-save", "ebtables-restore")
    }
    with path_of(tmp_path, **passed_on):
        rules = node.look("azure0").rules
        assert node.remove_rules([f"-A {dnat(GONE, GONE_MAC)}"])
    assert f"-A {dnat(GONE, GONE_MAC)}" in rules
    assert f"-A {dnat(GONE, GONE_MAC)}" not in saved()


def test_a_batch_that_fails_though_the_rules_are_there_is_an_error(node: LinuxBridgeNode, tmp_path: Path) -> None:
    nat("-A", dnat(GONE, GONE_MAC))
    save = f'PATH={os.environ["PATH"]} exec ebtables-nft-save "$@"'
    with path_of(tmp_path, ebtables_nft_save=save, ebtables_nft_restore="echo no memory >&2; exit 4"):
        with pytest.raises(AzureVnetError, match="`ebtables-nft-restore` failed: no memory"):
            node.remove_rules([f"-A {dnat(GONE, GONE_MAC)}"])
        assert not node.remove_rules([f"-A {dnat(GONE, LIVE_MAC)}"])


def test_the_legacy_table_is_named_and_left_alone(node: LinuxBridgeNode, tmp_path: Path) -> None:
    (tmp_path / "module/ebtable_nat").mkdir(parents=True)
    state = LinuxBridgeNode(sys=tmp_path).look("azure0")
    assert "legacy ebtables, whose rules aren't looked at" in state.notes[0]
    assert state.rules
    assert node.look("azure0").notes == ()


def test_rules_saved_with_counters_are_read_without(node: LinuxBridgeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    before = node.look("azure0").rules
    monkeypatch.setenv("EBTABLES_SAVE_COUNTER", "yes")
    assert node.look("azure0").rules == before
