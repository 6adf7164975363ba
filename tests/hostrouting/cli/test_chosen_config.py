"""Tests of the config that a command without CONFIG takes, and of --uplink."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import attrs
import pytest
from file_trees import write_file
from node import SECOND_GATEWAY, add_nics, default_route
from wanted import SHADOWED, section

from hostrouting import Config, Host
from hostrouting.kernel.port import Write, read_default_routes
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import NextHop, Protocol, Route
from hostrouting.testing import FakeKernel

pytestmark = pytest.mark.usefixtures("judged_here")

Run = Callable[..., tuple[int, str, str]]

INSTALLED = {"hostRouting": section(SHADOWED, keep=["ib0"])}
OTHER_CIDR = "172.16.9.0/24"
ANOTHER = {"hostRouting": section(cidrs=[OTHER_CIDR], mode="WARN"), "agent": {"token": "t"}}
TOLD = "the installed config is"


@pytest.fixture
def installed(run: Run, write: Any, host: Host) -> Path:
    """Return an installed config, which isn't the default CONFIG."""
    path: Path = write(INSTALLED)
    assert run("apply", path)[0] == 0
    return path


def write_default(host: Host, document: object) -> Path:
    text = document if isinstance(document, str) else json.dumps(document)
    return write_file(host.layout.config, text)


@pytest.mark.parametrize("default", [None, ANOTHER, {"agent": 1}, "{"])
@pytest.mark.parametrize("word", ["check", "fix", "explain", "judge"])
@pytest.mark.usefixtures("installed")
def test_what_looks_takes_what_is_installed(
    run: Run, host: Host, kernel: FakeKernel, tmp_path: Path, word: str, default: object
) -> None:
    if default is not None:
        write_default(host, default)
    node = tmp_path / "node.json"
    take_snapshot(kernel).save(node)
    arguments: dict[str, list[object]] = {"explain": ["172.16.1.9"], "judge": [node]}
    code, out, err = run(word, *arguments.get(word, []))
    verb = "checked" if word == "check" else "used"
    assert (code, f"{TOLD} {verb}" in err) == (0, True)
    assert OTHER_CIDR not in out
    not_that = f"{verb}, and not {host.layout.config}, which"
    keep = f"config set {host.layout.config} --from {host.layout.manifest}"
    ways = (
        f"to change to it: hostrouting apply; to record there what is installed: hostrouting {keep}"
    )
    differs = f"{not_that} differs; to look at that, name it; {ways}\n"
    assert (differs in err) == (default is ANOTHER)
    assert (f"{not_that} can't be used: " in err) == (default == "{")


@pytest.mark.parametrize("word", ["check", "fix", "explain"])
def test_the_default_is_taken_where_nothing_is_installed(run: Run, host: Host, word: str) -> None:
    write_default(host, ANOTHER)
    words = ["172.16.9.1"] if word == "explain" else []
    code, out, err = run(word, *words)
    assert (code, OTHER_CIDR in out, TOLD in err) == (0 if word == "fix" else 1, True, False)


@pytest.mark.usefixtures("installed")
def test_the_same_default_is_not_mentioned(run: Run, host: Host) -> None:
    """The printed fix then has the keys of other components."""
    write_default(host, INSTALLED | {"agent": 1})
    assert TOLD not in run("check")[2]
    code, out, err = run("fix")
    assert (code, TOLD in err, json.loads(out)) == (0, False, INSTALLED | {"agent": 1})


@pytest.mark.usefixtures("installed")
def test_the_installed_fix_is_printed_for_the_default(run: Run, host: Host) -> None:
    write_default(host, ANOTHER)
    out = run("fix")[1]
    assert json.loads(out) == ANOTHER | {"hostRouting": INSTALLED["hostRouting"]}


def test_a_cidr_alone_reads_no_file(run: Run, host: Host) -> None:
    write_default(host, "{")
    assert run("check", "--cidr", "10.96.0.0/12")[0] == 0


# --- fix --in-place -------------------------------------------------------------------------------


def test_one_file_needs_no_copy(run: Run, host: Host) -> None:
    """``fix --in-place``, then ``apply``: the default CONFIG is the truth at each change."""
    expected = {"hostRouting": {"waitSeconds": 0, "routeOverlap": {"expectedCidrs": [SHADOWED]}}}
    path = write_default(host, expected)
    assert run("fix", "--in-place")[0] == 0
    assert run("apply")[0] == 0
    assert "default CONFIG" not in run("check")[1]
    document = json.loads(path.read_text())
    document["hostRouting"]["routeOverlap"]["expectedCidrs"].append(OTHER_CIDR)
    path.write_text(json.dumps(document))
    assert run("apply")[0] == 0
    assert run("fix", "--in-place")[0] == 0
    assert run("apply")[0] == 0
    assert run("check")[0] == 0
    assert len(json.loads(path.read_text())["hostRouting"]["staticRoutes"]["routes"]) == 2


@pytest.mark.parametrize(
    ("default", "said"),
    [
        ({"agent": 1}, "it has no key hostRouting"),
        (ANOTHER, "it asks for something else than is installed: check-route-overlap"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_another_default_is_not_written_to(
    run: Run, host: Host, default: dict[str, Any], said: str
) -> None:
    path = write_default(host, default)
    code, out, err = run("fix", "--in-place")
    assert (code, out, json.loads(path.read_text())) == (78, "", default)
    assert said in err
    undoing = f"config set {path} --from {host.layout.manifest}"
    assert undoing in err
    naming = f"hint: if it is wanted: hostrouting fix --in-place {path}\n"
    assert (naming in err.partition(undoing)[0]) == (default is ANOTHER)
    assert run("fix", "--in-place", path)[0] == 0, "it is named"
    assert run("config", "set", path, "--from", host.layout.manifest)[0] == 0
    assert run("fix", "--in-place")[0] == 0


def test_a_fresh_hosts_default_without_our_keys_is_refused(run: Run, host: Host) -> None:
    write_default(host, {"agent": 1})
    code, _, err = run("fix", "--in-place")
    assert (code, "config set" in err) == (78, True)


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("installed")
def test_the_manifest_is_not_written_to(run: Run, host: Host) -> None:
    """Only a run writes it, so that it says what is installed."""
    before = host.layout.manifest.read_bytes()
    code, _, err = run("fix", "--in-place", host.layout.manifest)
    assert (code, "only apply writes it" in err) == (78, True)
    assert host.layout.manifest.read_bytes() == before


def test_other_routes_in_the_default_are_written_to(run: Run, host: Host) -> None:
    path = write_default(host, {"hostRouting": section("10.7.0.0/16")})
    assert run("fix", "--in-place")[0] == 0
    routes = json.loads(path.read_text())["hostRouting"]["staticRoutes"]["routes"]
    assert routes == [{"destination": "10.7.0.0/16"}, {"destination": SHADOWED}]


# --- --uplink -------------------------------------------------------------------------------------


@pytest.fixture
def two_defaults(kernel: FakeKernel) -> None:
    """A second NIC whose default route wins."""
    add_nics(kernel, eth1="10.2.0.4/24")
    by_eth0, *_ = read_default_routes(kernel)
    worse = attrs.evolve(by_eth0, metric=100)
    assert kernel.write(Write.DELETE, [by_eth0]) == ()
    better = default_route(NextHop("eth1", SECOND_GATEWAY), metric=50)
    assert kernel.write(Write.ADD, [worse, better]) == ()


EXPECTED = "10.96.0.0/12"


@pytest.mark.usefixtures("two_defaults")
@pytest.mark.parametrize(("devs", "code"), [(["eth1"], 0), (["eth0"], 1), (["eth0", "eth1"], 0)])
def test_uplinks_are_named_on_the_command_line(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path, devs: list[str], code: int
) -> None:
    flags = [word for dev in devs for word in ("--uplink", dev)]
    node = tmp_path / "node.json"
    take_snapshot(kernel).save(node)
    path = write({"hostRouting": section(cidrs=[EXPECTED], uplinks=["ib0"])})
    assert run("check", path, *flags)[0] == code
    assert run("check", "--cidr", EXPECTED, *flags)[0] == code
    assert run("check", path, *flags, "--snapshot", node)[0] == code
    assert run("judge", path, node, *flags)[0] == code
    assert run("explain", "10.96.0.1", path, *flags)[0] == code
    assert run("explain", "10.96.0.1", *flags)[0] == code


@pytest.mark.usefixtures("two_defaults")
def test_routes_that_inherit_an_uplink_of_the_command_line_come_with_it(
    run: Run, write: Any
) -> None:
    needed = 'these routes need hostRouting\'s "uplinks": ["eth0"], too'
    path = write({"hostRouting": section(cidrs=[SHADOWED], uplinks=["eth1"])})
    assert needed in run("check", path, "--uplink", "eth0")[1].splitlines()
    assert "these routes need" not in run("check", path, "--uplink", "eth1")[1]
    assert "these routes need" not in run("check", path)[1]


@pytest.mark.usefixtures("two_defaults")
def test_a_fix_through_a_contested_uplink_asks_first(run: Run) -> None:
    """Its routes follow whichever default route wins, so the command doesn't exit with 0."""
    code, out, err = run("fix", "--cidr", SHADOWED)
    assert (code, len(json.loads(out)["hostRouting"]["staticRoutes"]["routes"])) == (1, 1)
    assert 'set hostRouting\'s "uplinks": ["eth1"] or ["eth0"]' in err
    assert run("fix", "--cidr", SHADOWED, "--uplink", "eth1")[0] == 0
    assert run("fix", "--cidr", SHADOWED, "--uplink", "eth0", "--uplink", "eth1")[0] == 0
    assert run("fix", "--cidr", EXPECTED)[0] == 0


PODS = "10.244.0.0/16"
BY_ETH0 = Route(
    IPv4Network(PODS), (NextHop("eth0", IPv4Address("10.1.0.9")),), protocol=Protocol.STATIC
)
STORAGE = Route(
    IPv4Network("10.96.8.0/24"), (NextHop("eth1", SECOND_GATEWAY),), protocol=Protocol.BGP
)


# eth0 carries 10.96.8.0/24, whatever eth1's route with the higher metric says.
LOSING = attrs.evolve(STORAGE, metric=200)
WINNING = attrs.evolve(LOSING, hops=BY_ETH0.hops, metric=100)


LOSES = "(then 10.96.8.0/24 through eth0 fails the check)"
WINS = "(then CIDRs by the default route through eth1 fail the check)"
POD_FAILS = "(then 10.244.0.0/16 through eth0 fails the check)"
NIC, VPN = "eth1", "wg0"


@pytest.mark.parametrize(
    ("second", "routes", "answers"),
    [
        (NIC, [], f'["eth1"] or ["eth0"] {WINS}'),
        (NIC, [BY_ETH0], f'["eth1"] {POD_FAILS} or ["eth0"] {WINS}'),
        (NIC, [STORAGE], '["eth1"] or ["eth0"] (then 10.96.8.0/24 through eth1 fails the check)'),
        (NIC, [LOSING, WINNING], f'["eth1"] {LOSES} or ["eth0"] {WINS}'),
        (NIC, [BY_ETH0, STORAGE], f'["eth0", "eth1"] or ["eth1"] {POD_FAILS}'),
        (VPN, [], '["eth0"] or ["wg0"]'),
        (VPN, [BY_ETH0], f'["eth0"] or ["wg0"] {POD_FAILS}'),
        (VPN, [STORAGE], '["eth0"] (then 10.96.8.0/24 through wg0 fails the check) or ["wg0"]'),
        (VPN, [BY_ETH0, STORAGE], '["eth0", "wg0"] or ["eth0"] (then 10.96.8.0/24'),
    ],
)
@pytest.mark.usefixtures("two_defaults")
def test_each_uplink_comes_with_what_it_breaks(
    run: Run, kernel: FakeKernel, second: str, routes: list[Route], answers: str
) -> None:
    """Pods that another default route's interface carries would fail with an answer without it."""
    assert kernel.write(Write.ADD, routes) == ()
    if second == VPN:
        add_nics(kernel, wg0="10.200.0.2/24")
        (better,) = [route for route in read_default_routes(kernel) if route.metric == 50]
        assert kernel.write(Write.DELETE, [better]) == ()
        by_vpn = default_route(NextHop("wg0"), metric=20)
        storage = [route for route in routes if route is STORAGE]
        assert kernel.write(Write.DELETE, storage) == ()
        there = [attrs.evolve(route, hops=(NextHop("wg0"),)) for route in storage]
        assert kernel.write(Write.ADD, [by_vpn, *there]) == ()
    _, out, _ = run("check", "--cidr", PODS, "--cidr", EXPECTED)
    assert f'set hostRouting\'s "uplinks": {answers}' in out
    (first,) = re.findall(r'name the node.s uplinks: set hostRouting.s "uplinks": (\[.*?\])', out)
    flags = [word for dev in json.loads(first) for word in ("--uplink", dev)]
    report = json.loads(
        run("check", "--cidr", PODS, "--cidr", EXPECTED, *flags, "--output", "json")[1]
    )
    failing = {part for finding in report["findings"] for part in finding["ranges"]}
    # Without these routes, all packets take the VPN's default route.
    is_broken = f"{first} (then" in out or (second == VPN and not routes)
    assert failing.isdisjoint({PODS, "10.96.8.0/24"}) is not is_broken


@pytest.mark.usefixtures("two_defaults")
@pytest.mark.parametrize(
    ("destinations", "answers"),
    [
        ([EXPECTED], '["eth1"] or ["eth0"]'),
        (["10.96.0.0/13", "10.104.0.0/13"], '["eth1"] or ["eth0"]'),
        (["10.64.0.0/10"], '["eth1"] or ["eth0"]'),
        (["10.96.0.0/13"], f'["eth1"] or ["eth0"] {WINS}'),
    ],
)
def test_a_default_route_that_no_expected_packet_takes_breaks_nothing(
    run: Run, write: Any, destinations: list[str], answers: str
) -> None:
    path = write({"hostRouting": section(*destinations, cidrs=[EXPECTED], uplinks=["eth0"])})
    assert run("apply", "--routes-only", path)[0] == 0
    by_ib0 = {"cidr": "172.16.0.0/16", "devs": ["ib0"]}  # needs no default route
    cidrs = [by_ib0, EXPECTED]
    _, out, _ = run("check", write({"hostRouting": section(*destinations, cidrs=cidrs)}))
    assert f'set hostRouting\'s "uplinks": {answers}\n' in out


@pytest.mark.usefixtures("two_defaults")
@pytest.mark.parametrize("has_config", [False, True])
def test_the_fix_names_the_uplink(run: Run, write: Any, *, has_config: bool) -> None:
    words = (
        [write({"hostRouting": section(cidrs=[EXPECTED])})] if has_config else ["--cidr", EXPECTED]
    )
    code, out, _ = run("fix", *words, "--uplink", "eth0")
    fixed = json.loads(out)
    assert (code, fixed["hostRouting"]["uplinks"]) == (0, ["eth0"])
    assert Config.from_mapping(fixed).uplinks == ("eth0",)
    path = write(fixed)
    assert run("apply", "--routes-only", path)[0] == 0
    assert run("check", path)[0] == 0


def test_the_uplink_is_written_in_place(run: Run, write: Any) -> None:
    path = write({"hostRouting": section(SHADOWED)})
    assert run("fix", "--in-place", path, "--uplink", "eth0", "--uplink", "bond*")[0] == 0
    assert json.loads(path.read_text())["hostRouting"]["uplinks"] == ["eth0", "bond*"]


def test_a_bad_name_is_a_usage_error(run: Run) -> None:
    code, _, err = run("check", "--cidr", EXPECTED, "--uplink", "eth 0")
    assert (code, "--uplink" in err) == (64, True)


# --- apply --routes-only --------------------------------------------------------------------------


def test_routes_that_a_gate_will_remove_are_told(run: Run, write: Any, installed: Path) -> None:
    assert "a gate is installed" not in run("apply", "--routes-only", installed)[2]
    other = write({"hostRouting": section("172.16.2.0/24")})
    code, _, err = run("apply", "--routes-only", other)
    assert (code, "a gate is installed: the next start" in err) == (0, True)


# --- remove ---------------------------------------------------------------------------------------


def test_remove_says_what_stays(run: Run, host: Host) -> None:
    assert "stays" not in run("remove")[1]
    path = write_default(host, INSTALLED)
    assert run("apply")[0] == 0
    code, out, _ = run("remove")
    layout = host.layout
    there = [each for each in (layout.config, layout.run_dir) if each.exists()]
    assert (code, there[0]) == (0, path)
    (line,) = [line for line in out.splitlines() if line.startswith("stays ")]
    assert [*map(layout.relative, there)] == [
        each for each in re.findall(r"/[\w./-]+", line) if each.startswith(("/etc", "/run"))
    ]


@pytest.mark.parametrize("second", ["", "default via 10.230.0.1 dev eth1 metric 200"])
def test_a_storage_subnet_inside_the_vnet_stays_on_its_nic(
    run: Run, write: Any, kernel: FakeKernel, second: str
) -> None:
    """Naming the uplinks alone would lead storage away, so second-nic.md advises ``devs``."""
    vnet = "10.224.0.0/12"
    add_nics(kernel, eth1="10.230.0.5/24")
    if second:
        kernel.ip(f"route add {second}")
    alone = write({"hostRouting": section(cidrs=[vnet], uplinks=["eth0"])})
    code, out, _ = run("check", alone)
    assert (code, "sends to neighbours of eth1 in 10.230.0.0/24 through eth0" in out) == (1, True)
    both = {"cidr": vnet, "devs": ["eth0", "eth1"]}
    advised = write({"hostRouting": section(cidrs=[both], uplinks=["eth0"])})
    assert run("check", advised)[0] == 0
