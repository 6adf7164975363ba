"""Tests that ``hostNetworking`` is parsed as strictly as ``hostRouting``."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any

import pytest

from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe, StaleAzureVnet
from hostrouting.config.routing import Config
from hostrouting.model.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PROBE = {"enabled": True, "devices": ["azure0"], "ipv6Detection": "METADATA"}
STALE = {"cidrs": ["10.241.0.0/16", "fd00:10::/64"], "keep": ["10.241.0.9", "fd00:10::9"], "bridge": "azure1"}
STALE |= {"uplink": "enP1s0", "lockWaitSeconds": 10}  # type: ignore[dict-item]
WHOLE: dict[str, Any] = {"loadBalancerProbe": PROBE, "staleAzureVnet": STALE}


def read(**section: Any) -> HostNetworking:
    return HostNetworking.from_mapping({"hostNetworking": section})


def problems(document: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        HostNetworking.from_mapping(document)
    return dict(error.value.problems)


def test_every_key_is_read() -> None:
    cidrs = IPv4Network("10.241.0.0/16"), IPv6Network("fd00:10::/64")
    keep = IPv4Address("10.241.0.9"), IPv6Address("fd00:10::9")
    assert read(**WHOLE) == HostNetworking(
        LoadBalancerProbe(True, ("azure0",), Ipv6Detection.METADATA),
        StaleAzureVnet(cidrs, keep, "azure1", "enP1s0", 10),
    )


def test_missing_keys_have_defaults() -> None:
    config = read(loadBalancerProbe={}, staleAzureVnet={"cidrs": ["10.0.0.0/8"]})
    assert config.load_balancer_probe == LoadBalancerProbe(False, ("eth0",), Ipv6Detection.ALWAYS)
    assert config.stale_azure_vnet == StaleAzureVnet(["10.0.0.0/8"], (), "azure0", "eth0", 5)


@pytest.mark.parametrize("document", [{}, {"hostNetworking": None}, {"hostNetworking": {}}, {"other": {"a": 1}}])
def test_without_a_section_nothing_is_wanted(document: dict[str, Any]) -> None:
    assert HostNetworking.from_mapping(document) == HostNetworking()


@pytest.mark.parametrize("config", [HostNetworking(), read(**WHOLE), HostNetworking(consumer="kubelet.service")])
def test_a_written_config_reads_back(config: HostNetworking) -> None:
    assert HostNetworking.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_the_consumer_comes_from_host_routing() -> None:
    document = {"hostRouting": {"consumer": "kubelet.service"}, "hostNetworking": {}}
    assert HostNetworking.from_mapping(document).consumer == Config.from_mapping(document).consumer == "kubelet.service"
    assert list(problems({"hostNetworking": {"consumer": "kubelet.service"}})) == ["hostNetworking.consumer"]
    assert list(problems({"hostRouting": {"waitSeconds": -1}})) == ["hostRouting.waitSeconds"]
    assert Config.from_mapping({"hostNetworking": {"nonsense": 1}}) == Config()


@pytest.mark.parametrize(
    ("key", "section", "path", "message"),
    [
        ("loadBalancerProbe", {"probe": 1}, "probe", "unknown key"),
        ("loadBalancerProbe", {"required": True}, "required", "unknown key"),
        ("loadBalancerProbe", {"enabled": 1}, "enabled", "expected true or false"),
        ("loadBalancerProbe", {"devices": ["a/b"]}, "devices[0]", "'a/b' is no"),
        (
            "loadBalancerProbe",
            {"devices": []},
            "devices",
            "isn't one interface; name the one through which probes arrive",
        ),
        ("loadBalancerProbe", {"devices": ["eth0", "azure0"]}, "devices", "isn't one interface; name the one"),
        ("loadBalancerProbe", {"ipv6Detection": "KERNEL"}, "ipv6Detection", "expected ALWAYS or METADATA"),
        ("staleAzureVnet", {}, "cidrs", "is missing"),
        ("staleAzureVnet", {"cidrs": []}, "cidrs", "is empty; name the CIDRs of the pods"),
        ("staleAzureVnet", {"cidrs": "10.0.0.0/8"}, "cidrs", "expected a list, not a string"),
        ("staleAzureVnet", {"cidrs": ["10.0.0.1/8"]}, "cidrs[0]", "has host bits set"),
        ("staleAzureVnet", {"cidrs": ["0.0.0.0/0"]}, "cidrs[0]", "'0.0.0.0/0' is the default route"),
        ("staleAzureVnet", {"cidrs": ["::/0"]}, "cidrs[0]", "'::/0' is the default route"),
        ("staleAzureVnet", {"cidrs": ["10.0.0.0/8"], "keep": ["10.0.0.0/8"]}, "keep[0]", "is not an IP"),
        ("staleAzureVnet", {"cidrs": ["10.0.0.0/8"], "lockWaitSeconds": True}, "lockWaitSeconds", "is not an integer"),
    ],
)
def test_a_value_that_breaks_a_rule_is_named(key: str, section: dict[str, Any], path: str, message: str) -> None:
    assert message in problems({"hostNetworking": {key: section}})[f"hostNetworking.{key}.{path}"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"hostnetworking": {}}, {"hostnetworking": "unknown key; did you mean hostNetworking?"}),
        ([], {"": "expected an object with the key hostNetworking, not a list"}),
    ],
)
def test_a_typo_is_an_error(document: Any, problem: dict[str, str]) -> None:
    assert problems(document) == problem


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostNetworking": WHOLE}))
    assert HostNetworking.load(path) == read(**WHOLE)
    with pytest.raises(ConfigError, match="there is no such file"):
        HostNetworking.load(tmp_path / "none.json")
