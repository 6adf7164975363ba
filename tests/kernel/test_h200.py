"""Test that the H200 nodes from docs/howto/h200.md are diagnosed, fixed and let through, on Linux
and in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from h200 import VARIANTS, Variant
from needs import NO_BROADCAST, needs_linux
from node import LOST_AFTER_SECONDS, add_nics, default_route, hears, listening, tool

import phases
from hostrouting import Config, Configure, Host, Layout, RouteOverlapError, check
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.port import Kernel, Write, read_routes
from hostrouting.model.routes import Route, Table
from hostrouting.report import FindingKind
from hostrouting.testing import FakeSystemd

Run = Callable[..., tuple[int, str, str]]

BY_IB0 = "by 172.16.0.0/16 dev ib0 proto kernel scope link src 172.16.0.10"
ALL_BUT_THE_SUBNET = [
    "172.16.0.0/22",
    "172.16.5.0/24",
    "172.16.6.0/23",
    "172.16.8.0/21",
    "172.16.16.0/20",
    "172.16.32.0/19",
    "172.16.64.0/18",
    "172.16.128.0/17",
]
OWN_OF_INFINIBAND = "LOCAL 172.16.0.10/31 172.16.0.12/30 172.16.0.16/31"
HALVES = ({"destination": "172.16.0.0/17"}, {"destination": "172.16.128.0/17"})

# For each node: the end of the failure message, the notes and the fix.
EXPECTED: dict[str, tuple[str, list[str], list[dict[str, str]]]] = {
    "equal": ("", [OWN_OF_INFINIBAND, "BROADCAST 172.16.255.255/32"], [*HALVES]),
    "inside": ("", [], [{"destination": "172.16.1.0/24"}]),
    "around": (
        "; shadowed: 172.16.0.0/16",
        [OWN_OF_INFINIBAND, "BROADCAST 172.16.255.255/32"],
        [*HALVES],
    ),
    "same-subnet": (
        "",
        ["LOCAL 172.16.0.4/32", OWN_OF_INFINIBAND, "BROADCAST 172.16.255.255/32"],
        [half | {"gateway": "onlink"} for half in HALVES],
    ),
    "own-subnet": (
        f"; shadowed: {' '.join(ALL_BUT_THE_SUBNET)}",
        [
            OWN_OF_INFINIBAND,
            "LOCAL 172.16.4.4/32",
            "BROADCAST 172.16.4.255/32",
            "BROADCAST 172.16.255.255/32",
        ],
        [*HALVES],
    ),
}
# What keep takes from the neighbours on eth0's link, which is inside of InfiniBand's network.
OF_ETH0S_NEIGHBOURS = (
    "packets from the addresses of ib0-ib7 no longer go to 172.16.4.0/24 through eth0, but through "
    "their interfaces"
)
FIXED = [variant for variant in VARIANTS if variant.name in EXPECTED]
(GATEWAY_BEHIND,) = [variant for variant in VARIANTS if variant.name not in EXPECTED]


@pytest.fixture
def host(each_kernel: Kernel, tmp_path: Path) -> Host:
    return Host(routes=each_kernel, units=FakeSystemd(), layout=Layout(tmp_path))


def config_of(variant: Variant, host: Host) -> Path:
    path = host.layout.root / "config.json"
    path.write_text(json.dumps(variant.config))
    return path


def test_the_tutorials_commands_make_the_sick_node(kernel: NamespaceKernel, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
    (script,) = re.findall(r"^```text\n(for number in .*?)^```", page, re.MULTILINE | re.DOTALL)
    add_nics(kernel, eth0="10.1.0.4/24")
    assert kernel.write(Write.ADD, [default_route(metric=0)]) == ()
    tool("sh", "-ec", script)
    infiniband = [
        route
        for route in read_routes(kernel, Table.MAIN)
        if str(route.destination) == "172.16.0.0/16"
    ]
    assert [route.hops[0].dev for route in infiniband] == [f"ib{number}" for number in range(8)]
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    findings = check(Config(route_overlap={"expectedCidrs": ["172.16.0.0/16"]}), host=host).findings
    assert [finding.kind for finding in findings] == [FindingKind.OVERLAP]


def theirs(kernel: Kernel) -> list[Route]:
    """Return the routes of other programs."""
    return [route for route in read_routes(kernel) if not (route.is_ours or route.is_in_side_table)]


def noted(report: dict[str, Any]) -> list[str]:
    return [" ".join([note["kind"], *note["ranges"]]) for note in report["notes"]]


@pytest.mark.parametrize("variant", FIXED, ids=lambda variant: variant.name)
def test_a_sick_nodes_fix_lets_it_through(
    variant: Variant, each_kernel: Kernel, host: Host, run: Run
) -> None:
    needs_linux(*NO_BROADCAST)
    variant.build(each_kernel)
    before = read_routes(each_kernel)
    part, notes, fix = EXPECTED[variant.name]
    config = config_of(variant, host)

    code, out, _ = run("check", config, "--output", "json")
    report = json.loads(out)
    first = IPv4Network(variant.expected)[0]
    asked = f"expected CIDR {variant.expected} (probe {first})"
    assert code == 1
    assert [finding["message"] for finding in report["findings"]] == [
        f"OVERLAP: {asked} routes via ib0, expected eth0{part}; {BY_IB0}"
    ]
    assert report["findings"][0]["fix"] == fix
    assert noted(report) == notes

    code, out, err = run("fix", config)
    fixed = json.loads(out)
    assert code == 0
    minded = [line for line in err.splitlines() if line.startswith("caution: ")]
    if variant.name == "own-subnet":
        minded.remove(f"caution: {OF_ETH0S_NEIGHBOURS}")
    assert minded
    assert all("neighbours of ib0-ib7 in " in line for line in minded)
    static = {"enabled": True, "routes": fix, "keep": ["ib*"]}
    assert fixed == {"hostRouting": variant.config["hostRouting"] | {"staticRoutes": static}}
    assert read_routes(each_kernel) == before

    with pytest.raises(RouteOverlapError):
        phases.run(Configure(Config.from_mapping(variant.config), host=host))
    assert read_routes(each_kernel) == before
    config.write_text(out)
    phases.run(Configure(Config.load(config), host=host))
    assert theirs(each_kernel) == [*before]
    assert [str(r.destination) for r in read_routes(each_kernel, Table.MAIN) if r.is_ours] == [
        each["destination"] for each in fix
    ]

    code, out, _ = run("check", config, "--output", "json")
    assert (code, noted(json.loads(out))) == (0, notes)
    assert run("fix", config) == (
        0,
        json.dumps(fixed, indent=2) + "\n",
        "nothing fails: there is nothing to fix\n",
    )


@pytest.mark.parametrize("variant", FIXED, ids=lambda variant: variant.name)
def test_every_entry_of_a_fix_is_needed(
    variant: Variant, each_kernel: Kernel, host: Host, run: Run
) -> None:
    variant.build(each_kernel)
    fix = EXPECTED[variant.name][2]
    config = config_of(variant, host)
    for entry in fix:
        others = [each for each in fix if each != entry]
        static = {"staticRoutes": {"enabled": True, "routes": others}} if others else {}
        section = variant.config["hostRouting"] | static
        config.write_text(json.dumps({"hostRouting": section}))
        document = json.loads(run("fix", config)[1])
        routes = document["hostRouting"]["staticRoutes"]["routes"]
        assert routes == [*others, entry]


@pytest.mark.parametrize(
    "each_kernel", [pytest.param("linux", marks=pytest.mark.kernel)], indirect=True
)
@pytest.mark.parametrize("variant", FIXED, ids=lambda variant: variant.name)
def test_packets_reach_the_api_server_only_after_the_fix(
    variant: Variant, each_kernel: NamespaceKernel, host: Host, run: Run
) -> None:
    variant.build(each_kernel)
    router = f"{variant.gateway}/{IPv4Interface(variant.eth0).network.prefixlen}"
    each_kernel.in_fabric(lambda: each_kernel.add_address("eth0", router))
    with listening(each_kernel, "eth0") as api_server:
        assert not hears(api_server, patience=LOST_AFTER_SECONDS)
        code, fixed, _ = run("fix", config_of(variant, host))
        assert code == 0
        phases.run(Configure(Config.from_mapping(json.loads(fixed)), host=host))
        assert hears(api_server)


def test_a_gateway_on_the_infiniband_side_is_omitted_and_named(
    each_kernel: Kernel, host: Host, run: Run
) -> None:
    needs_linux(*NO_BROADCAST)
    GATEWAY_BEHIND.build(each_kernel)
    before = read_routes(each_kernel)
    config = config_of(GATEWAY_BEHIND, host)
    code, out, err = run("fix", config)
    assert code == 1
    gateway = "it is the gateway of 192.168.100.0/24 via 172.16.0.1 dev ib0 proto static"
    assert (
        f"no route fixes 172.16.0.1: {gateway}: no longer expect it, move that gateway, or remove "
        "the route, after which packets no longer go to 192.168.100.0/24 through ib0, "
        "but through eth0" in err.splitlines()
    )
    assert "172.16.0.1/32" not in out
    assert len(json.loads(out)["hostRouting"]["staticRoutes"]["routes"]) == 16

    config.write_text(out)
    with pytest.raises(RouteOverlapError) as raised:
        phases.run(Configure(Config.load(config), host=host))
    (finding,) = raised.value.findings
    assert finding.ranges == (IPv4Network("172.16.0.1/32"),)
    assert theirs(each_kernel) == [*before]
    assert run("fix", config)[1] == out


def test_what_eth0s_neighbours_lose_by_keep_is_named(
    each_kernel: Kernel, host: Host, run: Run
) -> None:
    """Before, InfiniBand's addresses answer eth0's neighbours, and with keep no longer."""
    (variant,) = [variant for variant in VARIANTS if variant.name == "own-subnet"]
    variant.build(each_kernel)
    path = config_of(variant, host)
    neighbour, own = IPv4Address("172.16.4.9"), IPv4Address("172.16.0.13")
    (before,) = each_kernel.lookup([neighbour], source=own)
    assert before.route is not None
    assert before.route.devs == ("eth0",)

    said = {"fix": run("fix", "--in-place", path)[2]}
    for words in (["check"], ["plan"], ["apply"]):
        _, out, err = run(*words, path)
        said[words[0]] = out + err
    assert [name for name, text in said.items() if OF_ETH0S_NEIGHBOURS not in text] == []
    (after,) = each_kernel.lookup([neighbour], source=own)
    assert after.route is not None
    assert after.route.devs == ("ib3",)
    assert OF_ETH0S_NEIGHBOURS not in "".join(run("check", path)[1:])
