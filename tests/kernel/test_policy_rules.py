"""Tests of our policy rules and side tables: how the kernel adds, orders, deletes and follows them.

tests/kernel/test_conformance.py compares the in-memory kernel with Linux on random ones.
"""

from __future__ import annotations

import errno as errnos
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import attrs
import pytest
from node import add_nics, build_node6, run_ip6, tool

from hostrouting.backend import Family, RouteBackend
from hostrouting.kernel.model import Model, model_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.kernel.rules import kernel_rules
from hostrouting.kernel.selection import Selection
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.errors import RouteError
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.routes import SIDE_TABLES, NextHop, Protocol, Route, RouteType, Scope, Table
from hostrouting.model.rules import Rule
from hostrouting.testing import FakeKernel

VPN_TABLE, VPN_PRIORITY = 52, 5270
SIDE_TABLE = SIDE_TABLES[0]
NOT_OURS = 99

CIDRS: dict[Family, IpNetwork] = {
    Family.IPV4: IPv4Network("172.16.0.0/16"),
    Family.IPV6: IPv6Network("fd00:172::/32"),
}
# An address of another host, and one of this host on the VPN's interface.
FAR: dict[Family, IpAddress] = {
    Family.IPV4: IPv4Address("172.16.0.9"),
    Family.IPV6: IPv6Address("fd00:172::9"),
}
OWN: dict[Family, IpAddress] = {
    Family.IPV4: IPv4Address("172.16.0.44"),
    Family.IPV6: IPv6Address("fd00:172::44"),
}
LOCAL_RULE = kernel_rules(Family.IPV4)[0]


def our_rule(preference: int, table: int = Table.MAIN, **selectors: object) -> Rule:
    return Rule(preference, table=table, protocol=Protocol.HOSTROUTING, **selectors)  # type: ignore[arg-type]


def pair_for(cidr: IpNetwork, preference: int) -> tuple[Rule, Rule]:
    """Return the kernel's rules that an entry of ``rules`` stands for."""
    return (
        our_rule(preference, Table.LOCAL, destination=cidr),
        our_rule(preference, destination=cidr),
    )


def written(backend: RouteBackend, change: Write, rules: Iterable[Rule]) -> list[tuple[Rule, int]]:
    """Write rules, and return those that are refused, each with its errno."""
    failures = backend.write_rules(change, [*rules])
    return [(failure.rule, failure.errno) for failure in failures]


# --- rules: a CIDR that table main decides about --------------------------------------------------


@pytest.fixture(
    params=[pytest.param(family, marks=pytest.mark.kernel) for family in Family], ids=str
)
def vpn(request: pytest.FixtureRequest, kernel: NamespaceKernel) -> RouteBackend:
    """Return a node whose VPN has a rule that sends everything by wg0.

    An address of wg0 is in the CIDR, so an own packet to it must stay on the host.
    """
    family: Family = request.param
    if family is Family.IPV6:
        build_node6("eth0", "wg0")
        kernel.add_address("wg0", f"{OWN[family]}/128")
        run_ip6(
            "route add default via fd00:a::1 dev eth0",
            f"route add default dev wg0 table {VPN_TABLE}",
            f"rule add lookup {VPN_TABLE} pref {VPN_PRIORITY}",
        )
        return NetlinkBackend6()
    add_nics(kernel, eth0="10.1.0.4/24", wg0="172.16.0.44/32")
    by_eth0 = (NextHop("eth0", IPv4Address("10.1.0.1")),)
    default = IPv4Network("0.0.0.0/0")
    by_vpn = Route(default, (NextHop("wg0"),), table=VPN_TABLE, scope=Scope.LINK)
    assert kernel.write(Write.ADD, [Route(default, by_eth0), by_vpn]) == ()
    kernel.add_rule(Rule(VPN_PRIORITY, table=VPN_TABLE))
    return kernel


def devs_to(backend: RouteBackend, address: IpAddress) -> tuple[str, ...]:
    (found,) = backend.lookup([address])
    assert found.route is not None
    return found.route.devs


def is_local(backend: RouteBackend, address: IpAddress) -> bool:
    (found,) = backend.lookup([address])
    return found.route is not None and found.route.type is RouteType.LOCAL


def move_local_rule_behind(backend: RouteBackend) -> None:
    """Move the rule for table local behind ours, as Cilium does."""
    assert written(backend, Write.ADD, [attrs.evolve(LOCAL_RULE, preference=30000)]) == []
    assert written(backend, Write.DELETE, [LOCAL_RULE]) == []


def test_a_pair_of_rules_makes_table_main_decide(vpn: RouteBackend) -> None:
    """IPv6 as IPv4: the rules are evaluated in the order in which they were added."""
    family = vpn.family
    before = vpn.facts().rules
    assert devs_to(vpn, FAR[family]) == ("wg0",)

    pair = pair_for(CIDRS[family], 5269)
    assert written(vpn, Write.ADD, pair) == []
    assert [rule for rule in vpn.facts().rules if rule.is_ours] == [*pair]
    assert devs_to(vpn, FAR[family]) == ("eth0",)
    assert is_local(vpn, OWN[family])

    move_local_rule_behind(vpn)
    assert is_local(vpn, OWN[family])

    shown = tool("ip", f"-{family.value}", "-N", "rule", "show").splitlines()
    assert [line for line in shown if line.endswith("proto 217")] == [
        f"5269:\tfrom all to {CIDRS[family]} lookup {table} proto 217" for table in (255, 254)
    ]

    assert written(vpn, Write.DELETE, pair) == []
    assert devs_to(vpn, FAR[family]) == ("wg0",)
    assert len(vpn.facts().rules) == len(before)


def test_the_rule_for_table_local_must_come_first(vpn: RouteBackend) -> None:
    """Behind the rule for table main, or without it, the host's own addresses leave the host."""
    family = vpn.family
    local, main = pair_for(CIDRS[family], 5269)
    move_local_rule_behind(vpn)

    assert written(vpn, Write.ADD, [main]) == []
    assert not is_local(vpn, OWN[family])
    assert written(vpn, Write.ADD, [local]) == []
    assert [rule for rule in vpn.facts().rules if rule.is_ours] == [main, local]
    assert not is_local(vpn, OWN[family])

    # The rule is deleted and added again, so that it comes last.
    assert written(vpn, Write.DELETE, [main]) == []
    assert written(vpn, Write.ADD, [main]) == []
    assert [rule for rule in vpn.facts().rules if rule.is_ours] == [local, main]
    assert is_local(vpn, OWN[family])


@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_model_follows_the_order_of_a_pair(vpn: RouteBackend, is_in_order: bool) -> None:
    """A snapshot keeps it, too."""
    family = vpn.family
    addresses = (FAR[family], OWN[family])
    move_local_rule_behind(vpn)
    before = modelled(vpn)
    assert [entry_of(before, address) for address in addresses] == [
        entry_of(vpn, address) for address in addresses
    ]

    pair = pair_for(CIDRS[family], 5269)
    added = pair if is_in_order else pair[::-1]
    assert written(vpn, Write.ADD, added) == []
    rules = vpn.facts().rules
    for model in (before.with_rules(rules), modelled(vpn)):
        assert model.facts().rules == rules
        assert [entry_of(model, address) for address in addresses] == [
            entry_of(vpn, address) for address in addresses
        ]
    assert is_local(vpn, OWN[family]) == is_in_order


def entry_of(backend: RouteBackend, address: IpAddress) -> Route | None:
    return backend.lookup([address])[0].route


def test_a_rule_is_refused_for_one_that_the_kernel_takes_for_it(vpn: RouteBackend) -> None:
    """A missing source matches any, and another protocol makes another rule."""
    general, special = overlapping(vpn.family)
    foreign = attrs.evolve(general, protocol=NOT_OURS)
    assert written(vpn, Write.ADD, [special, special, general, foreign]) == [
        (special, errnos.EEXIST),
        (general, errnos.EEXIST),
    ]
    assert at_100(vpn) == [special, foreign]


def test_exactly_the_named_rules_are_deleted(vpn: RouteBackend) -> None:
    """To the kernel, the general rule and the inverted one stand for the special one."""
    general, special = overlapping(vpn.family)
    foreign = attrs.evolve(general, protocol=NOT_OURS)
    inverted = attrs.evolve(special, is_inverted=True)
    assert written(vpn, Write.ADD, [foreign, special]) == []
    assert written(vpn, Write.DELETE, [general, inverted, special, special]) == [
        (general, errnos.ENOENT),
        (inverted, errnos.ENOENT),
        (special, errnos.ENOENT),
    ]
    assert at_100(vpn) == [foreign]


def test_a_rule_is_not_deleted_if_the_kernel_would_delete_another(vpn: RouteBackend) -> None:
    plain, _ = overlapping(vpn.family)
    for_users = attrs.evolve(plain, uid_range=(0, 5))
    assert written(vpn, Write.ADD, [for_users, plain]) == []
    assert written(vpn, Write.DELETE, [plain]) == [(plain, errnos.ENOTRECOVERABLE)]
    assert at_100(vpn) == [for_users, plain]
    assert written(vpn, Write.DELETE, [for_users, plain]) == []
    assert at_100(vpn) == []


def test_a_rule_with_all_selectors_is_put_back_as_it_was(vpn: RouteBackend) -> None:
    """The undo of a removal adds rules of our protocol that another program has made."""
    _, special = overlapping(vpn.family)
    rule = attrs.evolve(
        special,
        tos=0x10,
        tun_id=7,
        mark=5,
        mark_mask=0xF,
        iif="lo",
        oif="eth0",
        uid_range=(0, 5),
        ip_protocol=6,
        suppress_prefix_length=0,
        suppress_group=3,
        is_inverted=True,
    )
    assert written(vpn, Write.ADD, [rule]) == []
    assert at_100(vpn) == [rule]
    assert written(vpn, Write.DELETE, [rule]) == []
    assert at_100(vpn) == []


def test_a_rule_with_ports_is_deleted_but_never_added(vpn: RouteBackend) -> None:
    _, special = overlapping(vpn.family)
    words = f"from {special.source} to {special.destination} dport 443 lookup main"
    tool("ip", *f"-{vpn.family.value} rule add {words} pref 100 proto 217".split())
    (there,) = at_100(vpn)
    assert there.has_ports
    assert written(vpn, Write.DELETE, [there]) == []
    assert at_100(vpn) == []
    assert written(vpn, Write.ADD, [there]) == [(there, errnos.EOPNOTSUPP)]


def overlapping(family: Family) -> tuple[Rule, Rule]:
    """Return two rules at 100, the second of which has a source, too."""
    own = {Family.IPV4: IPv4Network("10.1.0.4/32"), Family.IPV6: IPv6Network("fd00:a::4/128")}
    general = our_rule(100, destination=CIDRS[family])
    special = our_rule(100, destination=CIDRS[family], source=own[family])
    return general, special


def at_100(backend: RouteBackend) -> list[Rule]:
    return [rule for rule in backend.facts().rules if rule.preference == 100]


@pytest.mark.parametrize("backend", [NetlinkBackend(), FakeKernel()], ids=["linux", "memory"])
def test_no_rule_is_replaced(backend: RouteBackend) -> None:
    with pytest.raises(ValueError, match="add the new one, then delete the old one"):
        backend.write_rules(Write.REPLACE, [])


# --- keep: the side table of an interface ---------------------------------------------------------

# ib0 is the first of two interfaces in one subnet, and eth1 has a gateway.
NETWORK = IPv4Network("172.16.0.0/16")
IB0, IB1, ETH1 = map(IPv4Address, ("172.16.0.10", "172.16.0.11", "10.2.0.4"))
NEIGHBOUR, ANYWHERE, POD = map(IPv4Address, ("172.16.5.5", "198.51.100.1", "10.244.0.7"))
SIDE_ROUTES = (
    Route(NETWORK, (NextHop("ib1"),), table=SIDE_TABLE, scope=Scope.LINK, source=IB1),
    Route(
        IPv4Network("10.2.0.0/24"),
        (NextHop("eth1"),),
        table=SIDE_TABLE + 1,
        scope=Scope.LINK,
        source=ETH1,
    ),
    Route(
        IPv4Network("0.0.0.0/0"),
        (NextHop("eth1", IPv4Address("10.2.0.1")),),
        table=SIDE_TABLE + 1,
    ),
)
FROM_IB1, FROM_ETH1 = IPv4Network(IB1), IPv4Network(ETH1)
KEEP_RULES = (
    our_rule(2170, SIDE_TABLE, source=FROM_IB1),
    our_rule(2170, SIDE_TABLE + 1, source=FROM_ETH1, suppress_prefix_length=0),
    our_rule(2171, source=FROM_ETH1, suppress_prefix_length=0),
    our_rule(2172, SIDE_TABLE + 1, source=FROM_ETH1),
)


@pytest.fixture
def kept(each_kernel: Kernel) -> Kernel:
    """Return a node with two interfaces in one subnet, a second NIC, and pods."""
    add_nics(each_kernel, eth0="10.1.0.4/24", ib0=f"{IB0}/16", ib1=f"{IB1}/16", eth1=f"{ETH1}/24")
    each_kernel.add_link("cni0")
    uplink = NextHop("eth0", IPv4Address("10.1.0.1"))
    routes = (
        Route(IPv4Network("0.0.0.0/0"), (uplink,)),
        Route(IPv4Network("10.244.0.0/24"), (NextHop("cni0"),), scope=Scope.LINK),
    )
    assert each_kernel.write(Write.ADD, routes) == ()
    return each_kernel


def ways_of(backend: RouteBackend) -> list[tuple[str, ...]]:
    """Return the interfaces of packets from kept addresses and from any other one."""
    asked = [
        (IB1, NEIGHBOUR),
        (ETH1, ANYWHERE),
        (ETH1, POD),
        (None, NEIGHBOUR),
        (None, ANYWHERE),
    ]
    answers = [backend.lookup([address], source=source)[0] for source, address in asked]
    return [answer.route.devs if answer.route else () for answer in answers]


BEFORE = [("ib0",), ("eth0",), ("cni0",), ("ib0",), ("eth0",)]
AFTER = [("ib1",), ("eth1",), ("cni0",), ("ib0",), ("eth0",)]


def keep(kernel: Kernel) -> None:
    assert kernel.write(Write.ADD, SIDE_ROUTES) == ()
    assert written(kernel, Write.ADD, KEEP_RULES) == []


def test_packets_from_a_kept_address_stay_on_its_interface(kept: Kernel) -> None:
    """Packets to this host's pods still reach them, as without a gateway."""
    assert ways_of(kept) == BEFORE
    keep(kept)
    assert ways_of(kept) == AFTER
    assert [rule for rule in kept.facts().rules if rule.is_ours] == [*KEEP_RULES]
    assert read_routes(kept, SIDE_TABLE) == SIDE_ROUTES[:1]
    everywhere = [*kept.entries(Selection(protocol=Protocol.HOSTROUTING))]
    assert {route for route in everywhere if route.is_in_side_table} == {*SIDE_ROUTES}

    assert written(kept, Write.DELETE, KEEP_RULES) == []
    assert ways_of(kept) == BEFORE
    assert kept.write(Write.DELETE, SIDE_ROUTES) == ()
    assert read_routes(kept, SIDE_TABLE + 1) == ()


def test_the_rules_of_a_link_that_went_down_fall_through_to_main(kept: Kernel) -> None:
    keep(kept)
    kept.set_link("eth1", up=False)
    kept.set_link("eth1", up=True)
    assert read_routes(kept, SIDE_TABLE + 1) == ()
    assert [rule for rule in kept.facts().rules if rule.is_ours] == [*KEEP_RULES]
    assert ways_of(kept)[1] == ("eth0",)


def test_a_model_predicts_rules_and_side_tables(kept: Kernel) -> None:
    """So does a snapshot, before and after."""
    predicted = modelled(kept)
    assert ways_of(predicted) == BEFORE
    rules = kept.facts().rules
    predicted = predicted.with_routes(SIDE_ROUTES)
    assert predicted.refused() == ()
    # Ours come after the rule for table local.
    predicted = predicted.with_rules((rules[0], *KEEP_RULES, *rules[1:]))
    assert ways_of(predicted) == AFTER

    keep(kept)
    found = take_snapshot(kept)
    assert [rule for rule in found.rules if rule.is_ours] == [*KEEP_RULES]
    assert {route for route in found.routes if route.is_in_side_table} == {*SIDE_ROUTES}
    reread = modelled(kept)
    assert ways_of(reread) == AFTER
    assert reread.facts().rules == predicted.facts().rules
    with pytest.raises(RouteError, match="2170000: the host is a snapshot"):
        reread.write_rules(Write.DELETE, KEEP_RULES)


def modelled(backend: RouteBackend) -> Model:
    """Return the model of what a snapshot of the node says."""
    if backend.family is Family.IPV6:
        found = take_snapshot(NetlinkBackend(), backend)
    else:
        found = take_snapshot(backend)
    return model_of(Snapshot.from_document(found.to_document()).known(backend.family))
