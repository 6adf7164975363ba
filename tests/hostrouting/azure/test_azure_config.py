"""The ``hostNetworking`` section: read as strictly as ``hostRouting``, beside it."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any

import pytest

from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe, StaleAzureVnet
from hostrouting.config.routing import Config
from hostrouting.model.errors import ConfigError
from hostrouting.model.parsing import parse_any_address, parse_any_prefix

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = {
    "loadBalancerProbe": {
        "enabled": True,
        "devices": ["azure0"],
        "ipv6Detection": "METADATA",
        "required": True,
        "waitSeconds": 60,
    },
    "staleAzureVnet": {
        "cidrs": ["10.241.0.0/16", "fd00:10::/64"],
        "keep": ["10.241.0.9", "fd00:10::9"],
        "bridge": "azure1",
        "uplink": "enP1s0",
        "lockWaitSeconds": 10,
    },
}


def read(**section: Any) -> HostNetworking:
    return HostNetworking.from_mapping({"hostNetworking": section})


def problems(document: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        HostNetworking.from_mapping(document)
    return dict(error.value.problems)


def test_every_key_is_read() -> None:
    config = read(**WHOLE)
    assert config.load_balancer_probe == LoadBalancerProbe(True, ("azure0",), Ipv6Detection.METADATA, True, 60)
    stale = config.stale_azure_vnet
    assert stale is not None
    assert stale.cidrs == (IPv4Network("10.241.0.0/16"), IPv6Network("fd00:10::/64"))
    assert stale.keep == (IPv4Address("10.241.0.9"), IPv6Address("fd00:10::9"))
    assert (stale.bridge, stale.uplink, stale.lock_wait_seconds) == ("azure1", "enP1s0", 10)


def test_several_devices_are_an_error_and_one_named_twice_is_one() -> None:
    found = problems({"hostNetworking": {"loadBalancerProbe": {"enabled": True, "devices": ["eth0", "azure0"]}}})
    assert list(found) == ["hostNetworking.loadBalancerProbe.devices"]
    assert LoadBalancerProbe(True, ["eth0", "eth0"]).devices == ("eth0",)


def test_what_is_left_out_has_a_default() -> None:
    config = read(loadBalancerProbe={}, staleAzureVnet={"cidrs": ["10.0.0.0/8"]})
    assert config.load_balancer_probe == LoadBalancerProbe(False, (), Ipv6Detection.KERNEL, False, 5)
    assert config.stale_azure_vnet == StaleAzureVnet(["10.0.0.0/8"], (), "azure0", "eth0", 5)


@pytest.mark.parametrize("document", [{}, {"hostNetworking": None}, {"hostNetworking": {}}, {"other": {"a": 1}}])
def test_no_section_asks_for_nothing(document: dict[str, Any]) -> None:
    assert HostNetworking.from_mapping(document) == HostNetworking()


@pytest.mark.parametrize(
    "config",
    [
        HostNetworking(),
        read(**WHOLE),
        HostNetworking({"enabled": True}, consumer="kubelet.service"),
        HostNetworking(stale_azure_vnet={"cidrs": ["10.0.0.0/8"]}),
    ],
)
def test_what_is_written_reads_back(config: HostNetworking) -> None:
    assert HostNetworking.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def test_which_unit_is_held_back_is_said_once_in_host_routing() -> None:
    document = {"hostRouting": {"consumer": "kubelet.service"}, "hostNetworking": {}}
    assert HostNetworking.from_mapping(document).consumer == Config.from_mapping(document).consumer == "kubelet.service"
    assert list(problems({"hostNetworking": {"consumer": "kubelet.service"}})) == ["hostNetworking.consumer"]


def test_host_routing_ignores_it_as_any_sibling() -> None:
    assert Config.from_mapping({"hostNetworking": {"nonsense": 1}}) == Config()


def test_all_problems_of_both_sections_are_told_at_once_with_their_paths() -> None:
    found = problems(
        {
            "hostRouting": {"waitSeconds": -1},
            "hostNetworking": {
                "loadBalancerProbe": {"enabled": 1, "devices": ["a/b"], "ipv6Detection": "IMDS", "probe": 1},
                "staleAzureVnet": {"cidrs": ["10.0.0.1/8"], "keep": ["10.0.0.0/8"], "lockWaitSeconds": True},
            },
        }
    )
    assert list(found) == [
        "hostRouting.waitSeconds",
        "hostNetworking.loadBalancerProbe.probe",
        "hostNetworking.loadBalancerProbe.enabled",
        "hostNetworking.loadBalancerProbe.devices[0]",
        "hostNetworking.loadBalancerProbe.ipv6Detection",
        "hostNetworking.staleAzureVnet.cidrs[0]",
        "hostNetworking.staleAzureVnet.keep[0]",
        "hostNetworking.staleAzureVnet.lockWaitSeconds",
    ]
    assert found["hostNetworking.loadBalancerProbe.ipv6Detection"].endswith("expected KERNEL or METADATA or ALWAYS")


@pytest.mark.parametrize(
    ("stale", "path", "message"),
    [
        ({}, "cidrs", "is missing"),
        ({"cidrs": []}, "cidrs", "is empty; name the CIDRs of the pods: nothing outside of them is ever touched"),
        ({"cidrs": "10.0.0.0/8"}, "cidrs", "expected a list, not a string"),
        ({"cidrs": ["0.0.0.0/0"]}, "cidrs[0]", "'0.0.0.0/0' is every address"),
        ({"cidrs": ["::/0"]}, "cidrs[0]", "'::/0' is every address"),
        (
            {"cidrs": ["10.241.0.0/16"], "keep": ["10.241.0.9", "10.214.0.9"]},
            "keep[1]",
            "'10.214.0.9' lies in none of the cidrs, so nothing of it is touched; a slip?",
        ),
        (
            {"cidrs": ["10.241.0.0/16"], "uplink": "azure0"},
            "uplink",
            "'azure0' is the bridge; it is the NIC that is its port",
        ),
    ],
)
def test_the_clean_up_has_bounds(stale: dict[str, Any], path: str, message: str) -> None:
    found = problems({"hostNetworking": {"staleAzureVnet": stale}})
    assert found[f"hostNetworking.staleAzureVnet.{path}"] == message


def test_rules_that_are_required_have_to_be_enabled() -> None:
    found = problems({"hostNetworking": {"loadBalancerProbe": {"required": True}}})
    assert list(found) == ["hostNetworking.loadBalancerProbe.required"]


def test_a_key_in_another_case_is_no_silent_nothing() -> None:
    assert problems({"hostnetworking": {}}) == {"hostnetworking": "unknown key; did you mean hostNetworking?"}


def test_a_document_that_is_no_object_is_told_once() -> None:
    with pytest.raises(ConfigError) as error:
        HostNetworking.from_mapping([])  # type: ignore[arg-type]
    assert error.value.problems == (("", "expected an object with the key hostNetworking, not a list"),)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostNetworking": WHOLE}))
    assert HostNetworking.load(path) == read(**WHOLE)
    with pytest.raises(ConfigError, match="there is no such file"):
        HostNetworking.load(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["::ffff:10.0.0.1", "10.0.0.01", "fd00::/64", ":", "1:2:3", 7, None])
def test_an_address_has_one_spelling(text: Any) -> None:
    with pytest.raises(ValueError, match="is not an IP"):
        parse_any_address(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fd00::1/64", "has host bits set; did you mean fd00::/64"),
        ("fd00::/129", "is not an IPv6 prefix"),
        ("fd00::/064", "is not an IPv6 prefix"),
        ("fd00::", "is not an IPv6 prefix"),
        ("fd00::%1/64", "'fd00::%1/64' has a zone"),
        ("10.0.0.0", "is not an IPv4 prefix; expected an address and a length"),
        ("224.0.0.0/8", "which is multicast"),
    ],
)
def test_a_prefix_of_either_family_is_strict(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_any_prefix(text)


def test_an_address_with_a_zone_is_told_so() -> None:
    with pytest.raises(ValueError, match="'fe80::1%eth0' has a zone"):
        parse_any_address("fe80::1%eth0")
