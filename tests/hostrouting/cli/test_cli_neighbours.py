"""``hostrouting lb-probe`` and ``hostrouting azure-vnet``: words, output, exit codes."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

import pytest

from hostrouting import Host, Layout, UnitError, cli
from hostrouting.azure import AzureVnetError, LinuxBridgeNode, LinuxProbeNode, examinations
from hostrouting.azure.probe import tasks as probe_tasks
from hostrouting.azure.probe.port import NodeAddress
from hostrouting.azure.probe.ruleset import TABLE
from hostrouting.azure.vnet import tasks as vnet_tasks
from hostrouting.azure.vnet.port import NodeState
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeBridgeNode, FakeKernel, FakeProbeNode, FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBE = {"enabled": True, "waitSeconds": 0}
STALE = {"cidrs": ["10.241.0.0/16"]}
DNAT = "-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.241.0.32 -j dnat --to-dst a2:11:22:33:44:55 --dnat-target ACCEPT"
PIN = "2603:1062:0:1:fe80:1234:5678:9abc via fe80::1234:5678:9abc dev eth0"


@pytest.fixture
def probe() -> FakeProbeNode:
    addresses = [NodeAddress("eth0", IPv6Address("fd00:1::4"))]
    return FakeProbeNode(default_devices=["eth0"], addresses=addresses)


@pytest.fixture
def bridge() -> FakeBridgeNode:
    return FakeBridgeNode(NodeState(rules=(DNAT,)))


@pytest.fixture
def host(tmp_path: Path, probe: FakeProbeNode, bridge: FakeBridgeNode, monkeypatch: pytest.MonkeyPatch) -> Host:
    fakes = {LinuxProbeNode: probe, LinuxBridgeNode: bridge}
    for module in (probe_tasks, vnet_tasks, examinations):
        monkeypatch.setattr(module, "given_or_real", lambda _, given, real: given or fakes[real])
    layout = Layout(tmp_path / "root")
    layout.units.mkdir(parents=True)
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    default = Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),), protocol=Protocol.DHCP)
    assert kernel.add([default]) == ()
    return Host(routes=kernel, units=FakeSystemd(layout), layout=layout)


@pytest.fixture
def run(host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command over a config; exit code, standard output and standard error."""

    def call(words: str, section: dict[str, Any] | None = None) -> tuple[int, str, str]:
        path = tmp_path / "config.json"
        path.write_text(
            json.dumps({"hostNetworking": section or {"loadBalancerProbe": PROBE, "staleAzureVnet": STALE}})
        )
        code = cli.main([str(path) if word == "CONFIG" else word for word in words.split()], host=host)
        out, err = capsys.readouterr()
        return code, out, err

    return call


# --- lb-probe ------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_apply_would_do_and_changes_nothing(run: Any, host: Host, probe: FakeProbeNode) -> None:
    code, out, _ = run("lb-probe plan CONFIG")
    assert code == 2
    assert "probes come in by: eth0  (eth0 has fd00:1::4)" in out
    assert f"+++ nftables table ip6 {TABLE}" in out
    assert f"+ {PIN}" in out
    assert "enable load-balancer-probe.service" in out
    assert not probe.tables
    assert not host.layout.manifest.exists()


def test_apply_does_what_plan_said_and_then_there_is_nothing_left(run: Any, probe: FakeProbeNode) -> None:
    code, out, _ = run("lb-probe apply CONFIG")
    assert code == 0
    assert f"nftables table ip6 {TABLE}: loaded" in out
    assert "added     /etc/systemd/system/load-balancer-probe.service" in out
    assert TABLE in probe.tables
    assert run("lb-probe plan CONFIG")[0] == 0
    assert "nothing to change" in run("lb-probe apply CONFIG")[1]


def test_json_is_one_document(run: Any) -> None:
    plan = json.loads(run("lb-probe plan CONFIG --output json")[1])
    assert (plan["schema"], plan["device"], plan["rules"]["differ"]) == (1, "eth0", True)
    assert {"unit": "load-balancer-probe.service", "change": "enabled"} in plan["units"]
    report = json.loads(run("lb-probe apply CONFIG --output json")[1])
    assert (report["schema"], report["changed"], report["problem"]) == (1, True, None)


@pytest.mark.parametrize("word", ["lb-probe remove", "remove"])
def test_it_is_taken_back_by_its_own_word_and_with_everything_else(
    run: Any, host: Host, probe: FakeProbeNode, word: str
) -> None:
    run("lb-probe apply CONFIG")
    code, out, _ = run(word)
    assert code == 0
    assert f"nftables table ip6 {TABLE}: removed" in out
    assert "removed   /etc/systemd/system/load-balancer-probe.service" in out
    assert not probe.tables
    assert not host.layout.manifest.exists()


def test_the_json_of_a_removal_has_both_and_that_of_the_probe_too(run: Any, host: Host) -> None:
    run("lb-probe apply CONFIG")
    document = json.loads(run("remove --output json")[1])
    pins = [{"route": f"{PIN} proto 217 metric 1", "change": "removed"}]
    assert (document["changed"], document["routes"]) == (True, pins)
    assert {"unit": "load-balancer-probe.service", "change": "disabled"} in document["units"]
    assert (document["loadBalancerProbe"]["rules"]["differ"], document["loadBalancerProbe"]["routes"]) == (True, pins)
    run("lb-probe apply CONFIG")
    document = json.loads(run("lb-probe remove --output json")[1])
    assert (document["host"], document["changed"], document["routes"]) == (os.uname().nodename, True, pins)
    assert json.loads(run("lb-probe remove --output json")[1])["changed"] is False


def test_what_was_removed_for_probes_is_told_if_the_rest_fails(run: Any, host: Host, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise UnitError("no")

    run("lb-probe apply CONFIG")
    monkeypatch.setattr("hostrouting.tasks.configure._remove_routes", refuse)
    code, out, _ = run("remove --output json")
    document = json.loads(out)
    assert (code, document["error"], document["changed"]) == (1, "no", True)
    assert {"path": "/etc/systemd/system/load-balancer-probe.service", "change": "removed"} in document["files"]


def test_without_nft_it_is_reported_and_only_an_error_where_it_is_required(run: Any, probe: FakeProbeNode) -> None:
    probe.has_nft = False
    code, out, _ = run("lb-probe apply CONFIG")
    assert code == 0
    assert "problem: " in out
    assert "nftables" in out
    code, _, err = run("lb-probe apply CONFIG", {"loadBalancerProbe": PROBE | {"required": True}})
    assert code == 1
    assert "nftables" in err


def test_a_node_without_ipv6_has_nothing_to_change(run: Any, probe: FakeProbeNode) -> None:
    probe.address_list.clear()
    code, out, _ = run("lb-probe plan CONFIG")
    assert code == 0
    assert "skipped: no IPv6 address" in out


def lose_nft(host: Host, probe: FakeProbeNode) -> None:
    probe.has_nft = False


def lose_the_device(host: Host, probe: FakeProbeNode) -> None:
    assert isinstance(host.routes, FakeKernel)
    host.routes.del_link("eth0")


def edit_the_script(host: Host, probe: FakeProbeNode) -> None:
    host.layout.script("load-balancer-probe").write_text("#!/bin/bash\nexit 1\n")


@pytest.mark.parametrize(
    ("meddle", "reason"),
    [
        (lose_nft, "nftables"),
        (lose_the_device, "the load balancer's probes need device eth0 (there is no such device)"),
        (edit_the_script, "/etc/aks-flex-node/load-balancer-probe.sh isn't as hostrouting writes it"),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_the_plan_of_host_routing_says_if_required_rules_would_hold_the_next_start_back(
    run: Any, host: Host, probe: FakeProbeNode, meddle: Callable[..., None], reason: str, required: bool
) -> None:
    section = {"loadBalancerProbe": PROBE | {"required": required}}
    assert run("lb-probe apply CONFIG", section)[0] == 0
    assert json.loads(run("plan CONFIG --output json", section)[1])["nextStart"]["admitted"]
    meddle(host, probe)
    start = json.loads(run("plan CONFIG --output json", section)[1])["nextStart"]
    assert start["admitted"] is not required
    assert (reason in start["reason"]) is required


def test_into_an_image_go_files_alone(run: Any, host: Host, tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "usr/lib/systemd/system").mkdir(parents=True)
    code, _, err = run(f"lb-probe apply --root {image} CONFIG")
    assert code == 78
    assert "hostNetworking.loadBalancerProbe.devices: must be given for an image" in err


# --- azure-vnet ----------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_each_object_with_its_reason(run: Any, bridge: FakeBridgeNode) -> None:
    code, out, _ = run("azure-vnet plan CONFIG")
    assert code == 2
    assert "10.241.0.32" in out
    assert "no pod here has this MAC any more" in out
    assert bridge.state.rules == (DNAT,)


def test_clean_removes_it_and_a_second_run_finds_nothing(run: Any, bridge: FakeBridgeNode) -> None:
    code, out, _ = run("azure-vnet clean CONFIG")
    assert code == 0
    assert "removed" in out
    assert bridge.state.rules == ()
    assert run("azure-vnet plan CONFIG")[0] == 0
    assert "azure-vnet has left nothing here" in run("azure-vnet clean CONFIG")[1]


def test_its_json_is_one_document(run: Any) -> None:
    plan = json.loads(run("azure-vnet plan CONFIG --output json")[1])
    assert plan["schema"] == 1
    assert [(one["kind"], one["object"]) for one in plan["removed"]] == [("rule", DNAT)]
    report = json.loads(run("azure-vnet clean CONFIG --output json")[1])
    assert (report["schema"], len(report["removed"])) == (1, 1)


@pytest.mark.parametrize("word", ["plan", "clean"])
def test_without_bounds_nothing_is_looked_at(run: Any, bridge: FakeBridgeNode, word: str) -> None:
    code, _, err = run(f"azure-vnet {word} CONFIG", {"loadBalancerProbe": {}})
    assert code == 78
    assert "hostNetworking.staleAzureVnet: is missing; name the CIDRs of the pods" in err
    assert bridge.state.rules == (DNAT,)


# --- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["lb-probe", "azure-vnet", "lb-probe clean", "azure-vnet apply CONFIG"])
def test_a_word_that_is_none_is_wrong_usage_with_a_hint(run: Any, words: str) -> None:
    code, _, err = run(words)
    assert code == 64
    assert f"try hostrouting {words.split()[0]} --help" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("lb-probe --help", "fe80::1234:5678:9abc"),
        ("lb-probe apply --help", "--root DIR"),
        ("lb-probe remove --help", "Needs no config"),
        ("azure-vnet --help", "hostNetworking.staleAzureVnet"),
        ("azure-vnet clean --help", "azure-vnet's own lock"),
        ("--help", "azure-vnet"),
    ],
)
def test_help_teaches(run: Any, words: str, said: str) -> None:
    code, out, _ = run(words)
    assert code == 0
    assert said in out


def test_a_document_without_the_section_asks_for_nothing_and_says_so(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    assert cli.main(["lb-probe", "plan", str(path)], host=host) == 0
    out, err = capsys.readouterr()
    assert "loadBalancerProbe isn't enabled" in out
    assert "has no key hostNetworking: it asks for nothing" in err


def test_not_permitted_is_77(run: Any, bridge: FakeBridgeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NodeState:
        raise AzureVnetError("can't read the rules: not permitted; run as root", errno=1)

    monkeypatch.setattr(bridge, "look", refuse)
    assert run("azure-vnet plan CONFIG")[0] == 77
