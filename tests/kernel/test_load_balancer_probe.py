"""ConfigureLoadBalancerProbe on a real kernel with a real nft: what changes, what doesn't, and what others do to it."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from nightly import by_day
from programs import tool
from scripts import Sandbox

import phases
from hostrouting import Host, Layout
from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe import linux
from hostrouting.azure.probe.linux import LinuxProbeNode
from hostrouting.azure.probe.port import Pin
from hostrouting.azure.probe.ruleset import PROBE, PROBE_SOURCE, REMOVAL, REWRITTEN_SOURCE, TABLE, render_ruleset
from hostrouting.azure.probe.tasks import ConfigureLoadBalancerProbe, RemoveLoadBalancerProbe
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.kernel._namespaces import Namespace
from hostrouting.testing import FakeProbeNode, FakeSystemd
from phases import CancelScope

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from hostrouting.azure.probe.plan import ProbeReport
    from hostrouting.azure.probe.port import ProbeNode
    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("nft")]

OURS = 217
PINNED = Pin(PROBE_SOURCE, "eth0", OURS, 1)


def run(*lines: str) -> str:
    """Commands as an administrator types them; what they print."""
    return "".join(tool(*line.split()) for line in lines)


class Node:
    """A node with eth0, which has IPv6, and eth1, which hasn't."""

    def __init__(self, kernel: NamespaceKernel, root: Path) -> None:
        self.kernel = kernel
        for dev in ("eth0", "eth1"):
            kernel.add_link(dev)
        run("ip -6 address add fd00::4/64 dev eth0 nodad", "ip -6 route add default via fe80::1 dev eth0")
        self.there = LinuxProbeNode()
        layout = Layout(root)
        layout.units.mkdir(parents=True)
        self.host = Host(kernel, FakeSystemd(layout), layout)

    def configure(self, **more: Any) -> ProbeReport:
        asked = LoadBalancerProbe(enabled=True, **({"wait_seconds": 0, "required": True} | more))
        return phases.run(ConfigureLoadBalancerProbe(HostNetworking(asked), host=self.host, node=self.there))

    def remove(self) -> ProbeReport:
        return phases.run(RemoveLoadBalancerProbe(host=self.host, node=self.there))


@pytest.fixture
def node(kernel: NamespaceKernel, tmp_path: Path) -> Node:
    return Node(kernel, tmp_path)


def probe(node: Node) -> None:
    """A probe to a port of the node where nobody listens; a refusal is an answer."""

    def from_the_balancer() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as balancer:
            index = socket.if_nametoindex("eth0")
            balancer.bind((str(PROBE_SOURCE), 0, 0, index))
            balancer.settimeout(10)
            with pytest.raises(ConnectionRefusedError):
                balancer.connect(("fd00::4", 10256))

    node.kernel.in_fabric(from_the_balancer)


def build_balancer(node: Node) -> None:
    def there() -> None:
        run(f"ip -6 address add {PROBE_SOURCE}/64 dev eth0 nodad", "ip -6 address add fd00::1/64 dev eth0 nodad")

    node.kernel.in_fabric(there)


def counted() -> list[int]:
    return [int(count) for count in re.findall(r"packets (\d+)", run(f"nft list table ip6 {TABLE}"))]


def test_the_first_run_changes_the_second_nothing_and_the_counters_go_on(node: Node) -> None:
    build_balancer(node)
    assert node.configure().changed
    probe(node)
    before, handles = counted(), run(f"nft -a list table ip6 {TABLE}")
    assert all(before)
    second = node.configure()
    assert not second.changed
    assert second.pins.unchanged == (PINNED,)
    assert counted() == before
    assert run(f"nft -a list table ip6 {TABLE}") == handles


def test_a_removal_leaves_nothing(node: Node) -> None:
    before = run("ip -6 route", "nft list ruleset")
    node.configure()
    assert node.remove().changed
    assert run("ip -6 route", "nft list ruleset") == before
    assert not node.remove().changed


WITH_RULES = (
    f"nft insert rule ip6 {TABLE} prerouting accept",
    f"nft add rule ip6 {TABLE} postrouting counter",
    f"nft add chain ip6 {TABLE} stray",
    f"nft add set ip6 {TABLE} stray {{ type ipv6_addr; }}",
    f"nft flush chain ip6 {TABLE} prerouting",
    f"nft flush table ip6 {TABLE}",
    f"nft delete table ip6 {TABLE}",
    "nft flush ruleset",
    f"nft add table ip6 {TABLE} {{ flags dormant; }}",
    f"nft chain ip6 {TABLE} prerouting {{ policy drop; }}",
)


def test_what_others_do_to_the_rules_is_found_and_mended(node: Node) -> None:
    node.configure()
    wanted = node.there.listing(TABLE)
    for meddling in WITH_RULES:
        run(meddling)
        assert node.there.listing(TABLE) != wanted, meddling
        report = node.configure()
        assert report.has_new_rules, meddling
        assert not report.pins.changes, meddling
        assert node.there.listing(TABLE) == wanted, meddling
    assert not node.configure().changed


def test_a_table_of_an_older_shape_is_replaced_whole(node: Node) -> None:
    node.there.load(
        f"table ip6 {TABLE} {{\n chain prerouting {{\n type filter hook prerouting priority -200;\n }}\n"
        " chain stale {\n }\n}\n"
    )
    node.configure()
    assert node.there.listing(TABLE) == node.there.dry_run(render_ruleset("eth0"), TABLE)


def test_the_tables_of_others_stay_as_they_are_handles_and_all(node: Node) -> None:
    run("nft add table ip6 filter", "nft add chain ip6 filter input { type filter hook input priority 0 ; }",
        "nft add rule ip6 filter input counter", "nft add table inet azure_slb_probe")  # fmt: skip
    tables = ("nft -a list table ip6 filter", "nft -a list table inet azure_slb_probe")
    before = run(*tables)
    node.configure()
    node.configure(devices=["eth1"], ipv6_detection="ALWAYS")
    assert run(*tables) == before
    node.remove()
    assert run(*tables) == before


def test_a_listing_can_be_loaded_again(node: Node) -> None:
    for device in ("eth0", "a-b.c_d"):
        listing = node.there.dry_run(render_ruleset(device), TABLE)
        node.there.load(REMOVAL + listing)
        assert node.there.listing(TABLE) == listing


def test_a_rehearsal_changes_nothing_and_needs_none_of_the_devices(node: Node) -> None:
    before = run("nft list ruleset")
    listing = node.there.dry_run(render_ruleset("ghost0"), TABLE)
    assert '"ghost0"' in listing
    assert run("nft list ruleset") == before


def test_two_nodes_list_the_same_rules_alike(node: Node) -> None:
    node.configure()
    other = Namespace()
    other.run(lambda: node.there.load(render_ruleset("eth0")))
    assert other.run(lambda: node.there.listing(TABLE)) == node.there.listing(TABLE)
    other.run(lambda: node.there.load(REMOVAL))
    assert node.there.listing(TABLE) is not None


def test_what_fails_at_the_route_puts_the_former_rules_back(node: Node) -> None:
    node.configure()
    run("sysctl -qw net.ipv6.conf.eth1.disable_ipv6=1")
    before = (node.there.listing(TABLE), run("ip -6 route"))
    with pytest.raises(LoadBalancerProbeError, match="IPv6 is disabled on nexthop device") as caught:
        node.configure(devices=["eth1"], ipv6_detection="ALWAYS")
    assert not caught.value.is_not_permitted
    assert (node.there.listing(TABLE), run("ip -6 route")) == before


# --- privileges ------------------------------------------------------------------------------------------------------


def test_without_privileges_it_is_said_so(
    node: Node, tmp_path: Path, as_ordinary_user: Callable[[], AbstractContextManager[None]]
) -> None:
    with as_ordinary_user():
        pass  # or skipped, where there is only one user
    for name in ("nft", "unshare"):
        program = tmp_path / name
        real = shutil.which(name, path=SEARCH_PATH)
        program.write_text(f'#!/bin/sh\nexec setpriv --reuid 65534 --clear-groups {real} "$@"\n')
        program.chmod(0o755)
    # Not by the fixture alone: nft refuses to run for one user with the rights of another.
    there = LinuxProbeNode(search_path=f"{tmp_path}:{SEARCH_PATH}")
    calls: list[Callable[[], object]] = [
        lambda: there.listing(TABLE),
        lambda: there.load(REMOVAL),
        lambda: there.dry_run(render_ruleset("eth0"), TABLE),
    ]
    for call in calls:
        with pytest.raises(LoadBalancerProbeError, match="run as root") as caught:
            call()
        assert caught.value.is_not_permitted
    with as_ordinary_user(), pytest.raises(LoadBalancerProbeError, match="run as root") as caught:
        there.pin(PINNED)
    assert caught.value.is_not_permitted


# --- addresses and devices -------------------------------------------------------------------------------------------


def test_addresses_are_told_with_their_scope_and_whether_they_can_be_used(node: Node) -> None:
    node.kernel.in_fabric(lambda: run("ip -6 address add fd00::66/64 dev eth0 nodad"))
    run("ip -6 address add fd00::99/64 dev eth1", "ip -6 address add 2001:db8::4/64 dev eth1 nodad")
    there = {(own.dev, str(own.address)): own for own in node.there.addresses()}
    assert there["lo", "::1"].is_global is False
    assert (there["eth0", "fd00::4"].is_global, there["eth0", "fd00::4"].is_usable) == (True, True)
    assert (there["eth1", "fd00::99"].is_global, there["eth1", "fd00::99"].is_usable) == (True, False)
    assert there["eth1", "2001:db8::4"].is_usable
    link_local = [own for own in there.values() if own.dev == "eth0" and own.address.is_link_local]
    assert [own.is_global for own in link_local] == [False]


def test_an_address_that_somebody_else_has_is_not_usable(node: Node) -> None:
    run("sysctl -qw net.ipv6.conf.eth1.dad_transmits=1")
    node.kernel.in_fabric(lambda: run("ip -6 address add fd01::66/64 dev eth1 nodad"))
    run("ip -6 address add fd01::66/64 dev eth1")
    report = node.configure(devices=["eth1"], wait_seconds=3, required=False)
    assert "fd01::66 is there, and not usable" in (report.skipped_because or "")
    assert "dadfailed" in run("ip -6 address show dev eth1")


def test_a_tentative_address_is_waited_for(node: Node) -> None:
    run("ip -6 address add fd01::4/64 dev eth1")
    report = node.configure(devices=["eth1"], wait_seconds=30)
    assert (report.changed, report.evidence) == (True, "eth1 has fd01::4")


def test_a_kernel_without_ipv6_has_no_addresses_and_routes_of_it(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.kernel.add_address("eth0", "10.1.0.4/24")
    run("ip route add default via 10.1.0.1")
    monkeypatch.setattr(linux, "_IPV6", tmp_path / "none")
    assert (node.there.addresses(), node.there.pins(), node.there.default_devices()) == ((), (), ())


def test_default_devices_are_those_of_ipv6_by_metric(node: Node) -> None:
    for dev in ("eth2", "eth3", "eth5"):
        node.kernel.add_link(dev)
    run("ip -6 route add default metric 2000 nexthop via fe80::1 dev eth2 nexthop via fe80::1 dev eth1",
        "ip nexthop add id 7 via fe80::7 dev eth3", "ip -6 route add default nhid 7 metric 7",
        "ip -6 route add unreachable default metric 1", "ip -6 route add default via fe80::9 dev eth5 table 99")  # fmt: skip
    assert node.there.default_devices() == ("eth3", "eth0", "eth2", "eth1")


def test_before_router_advertisements_the_best_ipv4_default_route_names_the_device(node: Node) -> None:
    node.kernel.add_address("eth0", "10.1.0.4/24")
    node.kernel.add_address("eth1", "10.2.0.4/24")
    run("ip route add default via 10.2.0.1 metric 9", "ip route add default via 10.1.0.1 metric 5")
    run("ip -6 route del default")
    assert node.configure().device == "eth0"
    run("ip -6 route add default via fe80::9 dev eth1")
    assert node.configure(ipv6_detection="ALWAYS").device == "eth1"


def test_a_pin_by_a_nexthop_object_is_known(node: Node) -> None:
    run(f"ip nexthop add id 7 via {PROBE_SOURCE} dev eth0", f"ip -6 route add {REWRITTEN_SOURCE} nhid 7 metric 1")
    (pin,) = node.configure().pins.unchanged
    assert (pin.gateway, pin.dev) == (PROBE_SOURCE, "eth0")


# --- the route -------------------------------------------------------------------------------------------------------


def test_the_pinned_route_beats_a_default_route_of_another_device(node: Node) -> None:
    node.kernel.add_link("eth2")
    run("ip -6 route add default via fe80::9 dev eth2 metric 1", f"ip -6 route add {REWRITTEN_SOURCE} dev eth2")
    node.configure(devices=["eth0"])
    assert f"via {PROBE_SOURCE} dev eth0" in run(f"ip -6 route get {REWRITTEN_SOURCE}")


def test_the_route_moves_with_the_device_and_the_routes_of_others_stay(node: Node) -> None:
    run(f"ip -6 route add {REWRITTEN_SOURCE} via fe80::9 dev eth1 metric 50 proto static")
    node.configure()
    node.configure(devices=["eth1"], ipv6_detection="ALWAYS")
    there = [(pin.dev, pin.protocol, pin.metric) for pin in node.there.pins()]
    assert there == [("eth1", OURS, 1), ("eth1", 4, 50)]
    assert not node.configure(devices=["eth1"], ipv6_detection="ALWAYS").changed


def test_a_route_of_others_that_does_the_same_in_its_place_is_enough(node: Node) -> None:
    run(f"ip -6 route add {REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth0 metric 1 proto static")
    report = node.configure()
    assert [(pin.protocol, pin.metric) for pin in report.pins.unchanged] == [(4, 1)]
    node.remove()
    assert len(node.there.pins()) == 1


def test_a_rule_that_leads_past_the_route_is_an_error_and_all_is_as_before(node: Node) -> None:
    run("ip -6 rule add priority 9 table 99", "ip -6 route add default via fe80::9 dev eth1 table 99")
    before = run("ip -6 route", "nft list ruleset")
    with pytest.raises(LoadBalancerProbeError, match="answers to probes would go via fe80::9 dev eth1"):
        node.configure()
    assert run("ip -6 route", "nft list ruleset") == before
    run(f"ip -6 route add blackhole {REWRITTEN_SOURCE} table 99")
    with pytest.raises(LoadBalancerProbeError, match="answers to probes would go nowhere"):
        node.configure()


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (f"ip -6 route add {REWRITTEN_SOURCE} via fe80::9 dev eth1 metric 1 proto static", "via fe80::9 dev eth1 proto 4"),
        (f"ip -6 route add unreachable {REWRITTEN_SOURCE} metric 1", "dev lo proto 3"),
        (f"ip -6 route add {REWRITTEN_SOURCE} metric 1 nexthop via {PROBE_SOURCE} dev eth0 nexthop via fe80::9 dev eth1",
         "via fe80::9 dev eth1"),
    ],
)  # fmt: skip
def test_a_route_of_others_that_would_win_is_an_error_that_names_it(node: Node, theirs: str, named: str) -> None:
    run(theirs)
    before = run("ip -6 route", "nft list ruleset")
    with pytest.raises(LoadBalancerProbeError) as caught:
        node.configure()
    assert named in str(caught.value)
    assert run("ip -6 route", "nft list ruleset") == before


def test_a_route_that_is_there_may_be_added_and_one_that_is_not_deleted(node: Node) -> None:
    node.there.pin(PINNED)
    node.there.pin(PINNED)
    elsewhere = Pin(PROBE_SOURCE, "eth1", OURS, 1)
    node.there.unpin(elsewhere)
    assert node.there.pins() == (PINNED,)
    node.there.pin(elsewhere)
    assert node.there.pins() == (elsewhere,)
    node.there.pin(PINNED)
    run(f"ip -6 route add {REWRITTEN_SOURCE} via fe80::9 dev eth1 metric 5 proto static")
    with pytest.raises(LoadBalancerProbeError, match="File exists"):
        node.there.pin(attrs.evolve(PINNED, metric=5))
    run(f"ip -6 route del {REWRITTEN_SOURCE} metric 5")
    for _ in range(2):
        node.there.unpin(PINNED)
    node.there.unpin(Pin(PROBE_SOURCE, "ghost0", OURS, 1))
    assert node.there.pins() == ()


def test_a_device_that_is_down_or_gone_is_an_error_in_words(node: Node) -> None:
    node.kernel.set_link("eth1", up=False)
    with pytest.raises(LoadBalancerProbeError, match="Nexthop device is not up|Network is down"):
        node.there.pin(Pin(PROBE_SOURCE, "eth1", OURS, 1))
    with pytest.raises(LoadBalancerProbeError, match="Cannot find device"):
        node.there.pin(Pin(PROBE_SOURCE, "ghost0", OURS, 1))
    with pytest.raises(LoadBalancerProbeError, match=re.escape("in vain for device eth1 (it is down)")):
        node.configure(devices=["eth1"], ipv6_detection="ALWAYS")


def test_a_cancel_while_an_address_is_waited_for_changes_nothing(node: Node) -> None:
    before = run("ip -6 route", "nft list ruleset")
    scope = CancelScope()
    scope.cancel("enough")
    asked = HostNetworking(LoadBalancerProbe(enabled=True, devices=["eth1"]))
    task = ConfigureLoadBalancerProbe(asked, host=node.host, node=node.there)
    with pytest.raises(phases.Cancelled):
        task.do(scope)
    assert run("ip -6 route", "nft list ruleset") == before


def test_the_node_in_memory_answers_as_this_one_does(node: Node) -> None:
    fake = FakeProbeNode(default_devices=["eth0"])
    elsewhere, later = (attrs.evolve(PINNED, dev="eth1", metric=metric) for metric in (1, 2))
    foreign = attrs.evolve(PINNED, protocol=4, metric=3)
    story: list[Callable[[ProbeNode], object]] = [
        lambda there: there.default_devices(),
        *(
            partial(_called, "pin", pin)
            for pin in (PINNED, PINNED, elsewhere, foreign, attrs.evolve(later, metric=3), later)
        ),
        *(partial(_called, "unpin", pin) for pin in (PINNED, PINNED, elsewhere)),
        lambda there: there.listing(TABLE) is None,
        lambda there: there.load(REMOVAL),
        lambda there: there.load(render_ruleset("eth0")),
        lambda there: there.listing(TABLE) == there.dry_run(render_ruleset("eth0"), TABLE),
        lambda there: there.listing(TABLE) == there.dry_run(render_ruleset("eth1"), TABLE),
        lambda there: there.load(REMOVAL + (there.listing(TABLE) or "")),
        lambda there: there.listing(TABLE) == there.dry_run(render_ruleset("eth0"), TABLE),
        lambda there: there.load(REMOVAL),
        lambda there: there.listing(TABLE) is None,
        lambda there: there.listing("other") is None,
    ]
    for number, step in enumerate(story):
        assert step(fake) == step(node.there), number


def _called(name: str, pin: Pin, there: ProbeNode) -> object:
    """What came of it, and the routes afterwards."""
    try:
        getattr(there, name)(pin)
    except LoadBalancerProbeError as error:
        return error.errno, there.pins()
    return there.next_hop(), there.pins()


# --- the script that does it at boot -----------------------------------------------------------------------------------


WITH_RULES_AND_ROUTES = (
    "nft flush ruleset",
    f"nft insert rule ip6 {TABLE} prerouting accept",
    f"ip -6 route del {REWRITTEN_SOURCE}",
    f"ip -6 route replace {REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth1 metric 1 proto 217",
    "ip -6 route del default",
    f"ip -6 route add {REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth0 metric 9 proto static",
)


@pytest.mark.parametrize("is_script_first", [True, False])
def test_what_the_script_or_the_task_has_mended_leaves_the_other_nothing_to_change(
    node: Node, tmp_path: Path, is_script_first: bool
) -> None:
    node.configure(devices=["eth0"])
    text, rules = (
        path.read_text()
        for path in (node.host.layout.script(PROBE), node.host.layout.script(PROBE).with_suffix(".nft"))
    )
    folder = "/etc/aks-flex-node"
    (tmp_path / "sandbox").mkdir()
    sandbox = Sandbox(tmp_path / "sandbox")

    def script() -> bool:
        write = f"mkdir -p {folder}; printf %s {shlex.quote(rules)} >{folder}/load-balancer-probe.nft"
        done = sandbox.run(text, is_host=True, etc=True, prepare=write)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout != "nothing to change\n"

    def task() -> bool:
        return node.configure(devices=["eth0"]).changed

    def state() -> str:
        return run("ip -6 route", "nft -a list ruleset")

    first, second = (script, task) if is_script_first else (task, script)
    assert not script()
    # By day one half of it in the one order, and the other half in the other.
    begin = 0 if is_script_first else by_day(1, by_night=0)
    for meddling in WITH_RULES_AND_ROUTES[begin :: by_day(2, by_night=1)]:
        run(meddling)
        first()
        mended = state()
        assert not second(), meddling
        assert state() == mended, meddling
        assert node.there.pins()[0] == PINNED, meddling
