"""Tests that ``hostNetworking`` is parsed strictly, and for ``lb-probe``, ``azure-vnet`` and what
others say of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any

import pytest
from azure_fakes import FakeBridgeNode, FakeProbeNode, on_fakes
from config_schema import unmarked
from file_trees import write_file
from stale import arp_reply, dnat

from hostrouting import Host, Layout, UnitError, cli
from hostrouting.azure import Interface, NodeState
from hostrouting.azure.config import (
    HostNetworking,
    Ipv6Detection,
    LoadBalancerProbe,
    StaleAzureVnet,
)
from hostrouting.azure.probe.ruleset import TABLE, has_rules, host_route, render_ruleset
from hostrouting.config.routing import Config
from hostrouting.model.errors import ConfigError
from hostrouting.testing import FakeKernel, FakeSystemd

NETWORKING = {"loadBalancerProbe": {"enabled": True}, "staleAzureVnet": {"cidrs": ["10.1.0.0/24"]}}
UNIT = "load-balancer-probe.service"
RULES = "etc/aks-flex-node/load-balancer-probe.nft"
TOOLS = ("bin/bash", *(f"usr/bin/{name}" for name in ("ip", "awk", "flock", "timeout", "nft")))


@pytest.fixture
def probe() -> FakeProbeNode:
    return FakeProbeNode()


@pytest.fixture
def bridge() -> FakeBridgeNode:
    return FakeBridgeNode(NodeState(interfaces=(Interface("azure0"),)))


@pytest.fixture
def host(tmp_path: Path, probe: FakeProbeNode, bridge: FakeBridgeNode) -> Iterator[Host]:
    layout = Layout(tmp_path / "root")
    layout.units.mkdir(parents=True)
    for tool in TOOLS:
        write_file(layout.of(tool), "#!/bin/bash\necho 5.2\n", 0o755)
    with on_fakes(probe, bridge):
        yield Host(FakeKernel(), FakeSystemd(layout), layout)


@pytest.fixture
def run(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command with a config and returns its exit code, stdout and
    stderr.
    """

    def call(words: str, section: dict[str, Any] | None = None) -> tuple[int, str, str]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"hostNetworking": NETWORKING if section is None else section}))
        code = cli.main(
            [str(path) if word == "CONFIG" else word for word in words.split()], host=host
        )
        return code, *capsys.readouterr()

    return call


def test_apply_does_what_plan_announced(run: Any, host: Host, probe: FakeProbeNode) -> None:
    code, out, _ = run("lb-probe plan CONFIG")
    assert code == 2
    for line in (
        "probes arrive through: eth0",
        f"+ nftables table ip6 {TABLE}",
        f"enable {UNIT}",
        f"+ /{RULES}",
    ):
        assert line in out.splitlines()
    assert f"+++ /{RULES}" in run("lb-probe plan CONFIG -v")[1].splitlines()
    assert f"added     {host_route('eth0')}" in out
    planned = json.loads(run("lb-probe plan CONFIG --output json")[1])
    assert (probe, host.layout.manifest.exists()) == (FakeProbeNode(), False)
    code, out, _ = run("lb-probe apply CONFIG")
    assert (code, f"nftables table ip6 {TABLE}: loaded" in out, f"enabled   {UNIT}" in out) == (
        0,
        True,
        True,
    )
    assert (has_rules(probe.tables[TABLE], "eth0"), probe.host_route) == (True, host_route("eth0"))
    assert run("lb-probe plan CONFIG")[0] == 0
    assert run("lb-probe apply CONFIG")[1] == "probes arrive through: eth0\nnothing to change\n"
    run("remove")
    for document in (planned, json.loads(run("lb-probe apply CONFIG --output json")[1])):
        told = [document[key] for key in ("schema", "changed", "device", "rules")]
        assert told == [1, True, "eth0", "loaded"]
        assert document["routes"] == [{"route": host_route("eth0"), "change": "added"}]
        assert {"unit": UNIT, "change": "enabled"} in document["units"]


@pytest.mark.parametrize("word", ["lb-probe remove", "remove"])
def test_the_probe_is_removed(run: Any, host: Host, probe: FakeProbeNode, word: str) -> None:
    run("lb-probe apply CONFIG")
    document = json.loads(run(f"{word} --output json")[1])
    assert (document["changed"], document["routes"]) == (
        True,
        [{"route": host_route("eth0"), "change": "removed"}],
    )
    assert {"unit": UNIT, "change": "disabled"} in document["units"]
    assert (probe.tables, probe.host_route, host.layout.manifest.exists()) == ({}, None, False)
    assert json.loads(run(f"{word} --output json")[1])["changed"] is False


def test_a_partial_removal_is_reported(run: Any, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise UnitError("no")

    run("lb-probe apply CONFIG")
    monkeypatch.setattr("hostrouting.tasks.configure.plan_next_boot", refuse)
    code, out, _ = run("remove --output json")
    document = json.loads(out)
    assert (code, document["error"], document["changed"]) == (1, "no", True)
    assert {"path": f"/etc/systemd/system/{UNIT}", "change": "removed"} in document["files"]


def test_without_the_section_nothing_is_done(run: Any, host: Host, tmp_path: Path) -> None:
    assert "skipped: loadBalancerProbe isn't enabled" in run("lb-probe plan CONFIG", {})[1]
    (tmp_path / "empty.json").write_text("{}")
    assert (
        "has no key hostNetworking: it enables nothing"
        in run(f"lb-probe plan {tmp_path}/empty.json")[2]
    )


def test_clean_removes_the_planned_items(run: Any, bridge: FakeBridgeNode) -> None:
    bridge.state = NodeState(rules=(dnat("10.1.0.32"),))
    code, out, _ = run("azure-vnet plan CONFIG")
    assert (code, "no pod here has this MAC any more" in out, len(bridge.state.rules)) == (
        2,
        True,
        1,
    )
    assert len(json.loads(run("azure-vnet clean CONFIG --output json")[1])["removed"]) == 1
    assert (bridge.state.rules, run("azure-vnet plan CONFIG")[0]) == ((), 0)
    assert "there are no leftovers of azure-vnet" in run("azure-vnet clean CONFIG")[1]


@pytest.mark.parametrize("word", ["plan", "clean"])
def test_without_cidrs_no_node_is_read(run: Any, bridge: FakeBridgeNode, word: str) -> None:
    code, _, err = run(f"azure-vnet {word} CONFIG", {})
    assert (code, bridge.calls) == (78, [])
    assert "hostNetworking.staleAzureVnet: is missing; name the CIDRs of the pods" in err


OF_TABLE, MEDDLED = (
    f"nftables table ip6 {TABLE}",
    render_ruleset("eth0").replace("\t\tiifname", "\t\tdrop\n\t\tiifname"),
)
# Changes that other programs make to a node after installation, and the resulting findings.
PLANTED: dict[str, tuple[Any, list[tuple[str, str, str]]]] = {
    "nothing": (lambda *_: None, []),
    "flush": (lambda probe, _: probe.tables.clear(), [("probes-differ", OF_TABLE, "broken")]),
    "meddle": (
        lambda probe, _: probe.tables.update({TABLE: MEDDLED}),
        [("probes-differ", OF_TABLE, "broken")],
    ),
    "edit": (
        lambda _, host: host.layout.of(RULES).write_text("x\n"),
        [("probes-differ", f"/{RULES}", "broken")],
    ),
    "reroute": (
        lambda probe, _: setattr(probe, "host_route", "default"),
        [("probes-differ", host_route("eth0"), "risk")],
    ),
    "disable": (lambda _, host: host.units.disable(UNIT), [("probes-differ", UNIT, "risk")]),
    "refuse": (
        lambda probe, _: setattr(probe, "problem", "nft refused"),
        [("probes-fail", UNIT, "risk")],
    ),
    "remove nft": (
        lambda _, host: host.layout.of("usr/bin/nft").unlink(),
        [("tool-missing", "nft", "broken")],
    ),
}


@pytest.mark.parametrize(("plant", "wanted"), PLANTED.values(), ids=PLANTED)
def test_the_doctor_finds_differences(
    run: Any, probe: FakeProbeNode, host: Host, plant: Any, wanted: list[tuple[str, str, str]]
) -> None:
    run("lb-probe apply CONFIG")
    plant(probe, host)
    for words in ("doctor --output json", "doctor CONFIG --output json"):
        assert [
            (one["kind"], one["subject"], one["severity"]) for one in findings(run(words)[1])
        ] == wanted


KINDS = ("probes-differ", "probes-fail", "tool-missing", "azure-vnet-left", "azure-vnet-unseen")


def findings(document: str) -> list[dict[str, str]]:
    return [one for one in json.loads(document)["findings"] if one["kind"] in KINDS]


def test_the_doctor_compares_with_the_config(run: Any) -> None:
    assert [one["severity"] for one in findings(run("doctor CONFIG --output json")[1])] == [
        "broken"
    ]
    run("lb-probe apply CONFIG")
    assert [one["severity"] for one in findings(run("doctor CONFIG --output json", {})[1])] == [
        "risk"
    ]
    moved = {"loadBalancerProbe": {"enabled": True, "devices": ["eth1"]}}
    assert [one["severity"] for one in findings(run("doctor CONFIG --output json", moved)[1])] == [
        "broken"
    ]


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (NodeState(rules=(dnat("10.1.0.32"), arp_reply("10.1.0.32"))), ["azure-vnet-left"]),
        (NodeState(interfaces=(Interface("azure0"),), notes=("legacy",)), ["azure-vnet-unseen"]),
        (NodeState(notes=("there is no bridge",)), []),
    ],
)
def test_the_doctor_finds_leftovers(
    run: Any, bridge: FakeBridgeNode, state: NodeState, found: list[str]
) -> None:
    bridge.state = state
    section = {"staleAzureVnet": NETWORKING["staleAzureVnet"]}
    assert [
        one["kind"] for one in findings(run("doctor CONFIG --output json", section)[1])
    ] == found


# --- the config -----------------------------------------------------------------------------------


PROBE = {"enabled": True, "devices": ["azure0"], "ipv6Detection": "METADATA"}
STALE = {
    "cidrs": ["10.241.0.0/16", "fd00:10::/64"],
    "keep": ["10.241.0.9", "fd00:10::9"],
    "bridge": "azure1",
}
STALE |= {"uplink": "enP1s0", "lockWaitSeconds": 10}  # type: ignore[dict-item]
WHOLE: dict[str, Any] = {"loadBalancerProbe": PROBE, "staleAzureVnet": STALE}


def read(**section: Any) -> HostNetworking:
    return HostNetworking.from_mapping({"hostNetworking": section})


def problems(document: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        HostNetworking.from_mapping(document)
    assert unmarked(document, error.value.problems) == []
    return dict(error.value.problems)


def test_every_key_is_read() -> None:
    cidrs = IPv4Network("10.241.0.0/16"), IPv6Network("fd00:10::/64")
    keep = IPv4Address("10.241.0.9"), IPv6Address("fd00:10::9")
    assert read(**WHOLE) == HostNetworking(
        LoadBalancerProbe(True, ("azure0",), Ipv6Detection.METADATA),
        StaleAzureVnet(cidrs, keep, "azure1", "enP1s0", 10),
    )
    document: dict[str, Any]
    for document in ({}, {"hostNetworking": None}, {"hostNetworking": {}}, {"other": {"a": 1}}):
        assert HostNetworking.from_mapping(document) == HostNetworking()


@pytest.mark.parametrize(
    "config", [HostNetworking(), read(**WHOLE), HostNetworking(consumer="kubelet.service")]
)
def test_a_written_config_reads_back(config: HostNetworking) -> None:
    assert HostNetworking.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_the_consumer_comes_from_host_routing() -> None:
    document = {"hostRouting": {"consumer": "kubelet.service"}, "hostNetworking": {}}
    assert (
        HostNetworking.from_mapping(document).consumer
        == Config.from_mapping(document).consumer
        == "kubelet.service"
    )
    assert list(problems({"hostNetworking": {"consumer": "kubelet.service"}})) == [
        "hostNetworking.consumer"
    ]
    assert list(problems({"hostRouting": {"waitSeconds": -1}})) == ["hostRouting.waitSeconds"]
    assert Config.from_mapping({"hostNetworking": {"nonsense": 1}}) == Config()


@pytest.mark.parametrize(
    ("key", "section", "path", "message"),
    [
        ("loadBalancerProbe", {"probe": 1}, "probe", "unknown key"),
        ("loadBalancerProbe", {"enabled": 1}, "enabled", "expected true or false"),
        ("loadBalancerProbe", {"devices": ["a/b"]}, "devices[0]", "'a/b' is no"),
        (
            "loadBalancerProbe",
            {"devices": []},
            "devices",
            "isn't one interface; name the one through which probes",
        ),
        (
            "loadBalancerProbe",
            {"devices": ["eth0", "azure0"]},
            "devices",
            "isn't one interface; name the one",
        ),
        (
            "loadBalancerProbe",
            {"ipv6Detection": "KERNEL"},
            "ipv6Detection",
            "expected ALWAYS or METADATA",
        ),
        ("staleAzureVnet", {}, "cidrs", "is missing"),
        ("staleAzureVnet", {"cidrs": []}, "cidrs", "is empty; name the CIDRs of the pods"),
        ("staleAzureVnet", {"cidrs": "10.0.0.0/8"}, "cidrs", "expected a list, not a string"),
        ("staleAzureVnet", {"cidrs": ["10.0.0.1/8"]}, "cidrs[0]", "has host bits set"),
        (
            "staleAzureVnet",
            {"cidrs": ["0.0.0.0/0"]},
            "cidrs[0]",
            "'0.0.0.0/0' is the default route",
        ),
        (
            "staleAzureVnet",
            {"cidrs": ["10.0.0.0/8"], "keep": ["10.0.0.0/8"]},
            "keep[0]",
            "is not an IP",
        ),
        (
            "staleAzureVnet",
            {"cidrs": ["10.0.0.0/8"], "lockWaitSeconds": True},
            "lockWaitSeconds",
            "is not an integer",
        ),
    ],
)
def test_a_value_that_breaks_a_rule_is_named(
    key: str, section: dict[str, Any], path: str, message: str
) -> None:
    assert message in problems({"hostNetworking": {key: section}})[f"hostNetworking.{key}.{path}"]


def test_a_typo_is_an_error() -> None:
    assert problems({"hostnetworking": {}}) == {
        "hostnetworking": "unknown key; did you mean hostNetworking?"
    }
    assert problems([]) == {"": "expected an object with the key hostNetworking, not a list"}
