"""Test how lookups differ between Linux releases, and that a snapshot gets its own host's verdict
for each of them.
"""

from __future__ import annotations

import os
from ipaddress import IPv4Address
from pathlib import Path

import attrs
import pytest
from asking import recorded
from file_trees import write_file
from kernels.hosts import keep
from node import NICS, PAIR, like_linux, nics, run_ip, until
from scenario import play
from test_snapshots_agree import report

from hostrouting import Config, Layout
from hostrouting.host_files.proc_sys import devs_ignoring_linkdown
from hostrouting.kernel.model import model_of
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import read_routes
from hostrouting.kernel.release import (
    has_network_broadcasts,
    numbers_of,
    passes_discards,
    separates_on_deletion,
)
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.testing import FakeKernel

RELEASE = os.uname().release
IS_NEWER = (numbers_of(RELEASE) or ()) >= (5, 11)

# A discarding route in table main, in front of a route in table default.
DISCARD = f"""{PAIR}
    route add default via 10.1.0.1 dev eth0
    route add blackhole 172.16.0.0/16
    route add 172.0.0.0/8 via 10.1.0.1 dev eth0 table default
"""
DELETED = f"{PAIR} \n route add default via 10.1.0.1 dev eth0"


@pytest.mark.parametrize(
    ("kernel", "broadcasts", "passes", "separates"),
    [
        (None, False, None, None),
        ("Linux", False, None, None),
        ("Linux 5.10.46", True, True, True),
        ("Linux 5.13.19", True, True, True),
        ("Linux 5.15.0-1064-azure", False, True, True),
        ("Linux 6.1.0-27-amd64", False, True, True),
        ("Linux 6.8.0-45-generic", False, None, True),
        ("Linux 6.12.90", False, None, True),
        ("Linux 6.12.113", False, False, True),
        ("Linux 6.14.2", False, None, True),
        ("Linux 6.18.44", False, False, True),
        ("Linux 7.1.3", False, None, None),
        ("Linux 7.2.7", False, False, False),
        ("Linux 10.0", False, False, False),
    ],
)
def test_releases_differ(
    kernel: str | None, broadcasts: bool, passes: bool | None, separates: bool | None
) -> None:
    known = (has_network_broadcasts(kernel), passes_discards(kernel), separates_on_deletion(kernel))
    assert known == (broadcasts, passes, separates)


@pytest.mark.kernel
def test_a_subnets_first_address_is_a_broadcast_before_5_14(kernel: NamespaceKernel) -> None:
    play(kernel, PAIR)
    way = "broadcast 10.1.0.0" if has_network_broadcasts(RELEASE) else "10.1.0.0/24"
    play(kernel, f"get 10.1.0.0 -> {way} dev eth0 proto kernel scope link src 10.1.0.4")


@pytest.mark.kernel
def test_a_discard_in_main_is_passed_by_old_kernels(kernel: NamespaceKernel) -> None:
    answer = {
        True: "172.0.0.0/8 via 10.1.0.1 dev eth0 table default proto hostrouting",
        False: "EINVAL",
    }
    if (is_passed := passes_discards(RELEASE)) is None:
        pytest.skip(f"Linux {numbers_of(RELEASE)} wasn't measured")
    for each in (kernel, like_linux()):
        play(each, f"{DISCARD} \n get 172.16.5.9 -> {answer[is_passed]}")
        # Rules are evaluated from then on.
        play(each, "rule add pref 100 lookup 100 \n get 172.16.5.9 -> EINVAL")


@pytest.mark.kernel
@pytest.mark.parametrize(
    "deleted", ["pref 0 lookup local proto kernel", "pref 32766 lookup main proto kernel"]
)
def test_a_deleted_rule_leaves_the_tables_one_in_new_kernels(
    kernel: NamespaceKernel, deleted: str
) -> None:
    for each in (kernel, like_linux()):
        play(each, f"{DELETED} \n rule del {deleted}")
    asked = [IPv4Address(text) for text in ("10.1.0.4", "10.1.0.9", "8.8.8.8", "127.0.0.1")]
    theirs, ours = kernel.lookup(asked), like_linux_after(deleted).lookup(asked)
    assert [each.errno for each in theirs] == [each.errno for each in ours]
    assert recorded(kernel).is_merged is not separates_on_deletion(RELEASE)


def like_linux_after(deleted: str) -> FakeKernel:
    model = like_linux()
    play(model, f"{DELETED} \n rule del {deleted}")
    return model


@pytest.mark.kernel
@pytest.mark.parametrize(
    "scenario",
    [
        DISCARD,
        f"{DISCARD} \n rule add pref 100 lookup 100",
        f"{DELETED} \n rule del pref 0 lookup local proto kernel",
        (
            f"{DELETED} \n rule del pref 32766 lookup main proto kernel \n"
            " rule del pref 32767 lookup default proto kernel"
        ),
        (
            f"{DELETED} \n rule del pref 0 lookup local proto kernel \n"
            " route add throw 10.1.0.0/24 table local"
        ),
        f"{DELETED} \n addr add 172.16.0.10/16 dev ib0",
    ],
)
@pytest.mark.parametrize("cidr", ["172.16.0.0/16", "10.1.0.0/24"])
def test_a_snapshot_gets_its_own_hosts_verdict(
    kernel: NamespaceKernel, scenario: str, cidr: str
) -> None:
    play(kernel, scenario)
    config = Config.from_mapping(
        {"hostRouting": {"routeOverlap": {"expectedCidrs": [cidr]}, "waitSeconds": 0}}
    )
    keep(config, kernel)
    assert report(config, model_of(recorded(kernel).known(Family.IPV4))) == report(config, kernel)


def test_an_unmeasured_kernel_leaves_a_discard_unknown() -> None:
    kernel = FakeKernel()
    play(kernel, DISCARD)
    snapshot = attrs.evolve(recorded(kernel), kernel="Linux 6.8.0-45-generic")
    address = IPv4Address("172.16.5.9")
    with pytest.raises(RouteError, match="after a discarding route in table main"):
        model_of(snapshot.known(Family.IPV4)).lookup([address])
    for release, errno in (("Linux 6.1.0-27-amd64", 0), ("Linux 7.2.7", 22)):
        (found,) = model_of(attrs.evolve(snapshot, kernel=release).known(Family.IPV4)).lookup(
            [address]
        )
        assert (found.errno or 0) == errno


def test_a_deleted_rule_leaves_a_snapshot_by_hand_unknown() -> None:
    kernel = FakeKernel()
    play(kernel, f"{DELETED} \n rule del pref 0 lookup local proto kernel")
    snapshot = attrs.evolve(recorded(kernel), is_merged=None, kernel="Linux 7.2.7")
    with pytest.raises(RouteError, match="local and main are one"):
        model_of(snapshot.known(Family.IPV4)).lookup([IPv4Address("10.1.0.4")])


@pytest.mark.kernel
def test_all_of_ignore_routes_with_linkdown_counts_since_5_11(kernel: NamespaceKernel) -> None:
    run_ip(nics(eth0=NICS["eth0"]))
    Path("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").write_text("1")
    run_ip("link set peer-eth0 down")
    until(lambda: any(hop.is_linkdown for route in read_routes(kernel) for hop in route.hops))
    assert any(route.is_dead for route in read_routes(kernel)) is (IS_NEWER)
    known = devs_ignoring_linkdown(Layout(), kernel.facts().links, RELEASE)
    assert known == ((*(link.name for link in kernel.facts().links),) if IS_NEWER else None)


@pytest.mark.parametrize(
    ("kernel", "of_all", "known"),
    [
        ("Linux 5.10.46", 1, None),
        ("Linux 5.10.46", 0, ("eth0",)),
        ("Linux 6.1.0", 1, ("lo", "eth0")),
        (None, 0, ("eth0",)),
    ],
)
def test_ignoring_linkdown_is_unknown_before_5_11(
    kernel: str | None, of_all: int, known: tuple[str, ...] | None, tmp_path: Path
) -> None:
    for dev, value in (("all", of_all), ("lo", 0), ("eth0", 1)):
        write_file(
            tmp_path / f"proc/sys/net/ipv4/conf/{dev}/ignore_routes_with_linkdown", f"{value}\n"
        )
    fake = FakeKernel()
    fake.add_link("eth0")
    assert devs_ignoring_linkdown(Layout(tmp_path), fake.facts().links, kernel) == known
