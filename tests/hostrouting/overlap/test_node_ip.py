"""Tests that notes report wrong node and DNS addresses in the document. All other keys of the document are ignored."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node import shadowed_kernel

from hostrouting import Config, Host, Layout, Verdict, check, plan
from hostrouting.boot.bundle import rendered_files
from hostrouting.overlap.node_ip import NodeAddresses
from hostrouting.report import NoteKind
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from pathlib import Path

SECTION = {"routeOverlap": {"expectedCidrs": ["10.96.0.0/12"], "mode": "STRICT"}, "waitSeconds": 0}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(routes=shadowed_kernel(), units=FakeSystemd(), layout=Layout(tmp_path))


def document(node_ip: object = None, dns: object = None, **more: Any) -> dict[str, Any]:
    beside = {"node": {"kubelet": {"nodeIP": node_ip}}, "networking": {"dnsServiceIP": dns}}
    return {"hostRouting": SECTION | more} | beside


FITS: dict[str, tuple[dict[str, Any], list[tuple[str, tuple[str, ...]]]]] = {
    "all fits": (document("10.1.0.4", "10.96.0.10"), []),
    "nothing is given": ({"hostRouting": SECTION}, []),
    "on no interface": (document("10.1.0.5"), [("node.kubelet.nodeIP", ())]),
    "on another interface than the uplink": (document("172.16.0.10"), [("node.kubelet.nodeIP", ("ib0",))]),
    "on a named uplink": (document("172.16.0.10", uplinks=["eth0", "ib0"]), []),
    "DNS isn't expected": (document(dns="172.20.0.10"), [("networking.dnsServiceIP", ())]),
    "neither fits": (document("10.1.0.5", "10.1.0.5"), [("node.kubelet.nodeIP", ()), ("networking.dnsServiceIP", ())]),
}


@pytest.mark.parametrize(("given", "told"), FITS.values(), ids=FITS)
def test_a_wrong_node_address_is_a_note(
    given: dict[str, Any], told: list[tuple[str, tuple[str, ...]]], host: Host
) -> None:
    config = Config.from_mapping(given)
    report = check(config, host=host, document=given)
    notes = [note for note in report.notes if note.kind is NoteKind.NODE_IP]
    assert [(note.message.partition(":")[0], note.devs) for note in notes] == told
    assert report.verdict is Verdict.OK


def test_the_hint_names_the_uplinks_address(host: Host) -> None:
    given = document("172.16.0.10")
    (note,) = check(Config.from_mapping(given), host=host, document=given).notes
    assert note.message.endswith("; set it to 10.1.0.4, which eth0 has")


# --- other shapes of the document, and where the addresses are used --------------------------------------------------

words = st.text("01.:/afé\n", max_size=4) | st.sampled_from(
    ["10.1.0.4", "10.1.0.4/24", "fd00::1", "0.0.0.0", "10.1.0.4,fd00::1"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["node", "kubelet", "nodeIP", "networking", "dnsServiceIP"]), inner, max_size=3
        )
    ),
)


@given(values)
def test_an_unknown_shape_is_no_error(value: object) -> None:
    for found in NodeAddresses.of(value):
        assert found is None or found == IPv4Address("10.1.0.4")
    assert NodeAddresses.of({"node": {"kubelet": {"nodeIP": value}}}).dns_service_ip is None


def test_the_other_keys_are_used_for_nothing_else(host: Host) -> None:
    """Tokens are stored next to the addresses, so config, mapping, plan and files must not depend on those keys."""
    secret = document("10.1.0.5", "172.20.0.10") | {"azure": {"bootstrapToken": "s3cr3t"}}
    with_them, without = Config.from_mapping(secret), Config.from_mapping({"hostRouting": SECTION})
    assert with_them == without
    assert with_them.to_mapping() == without.to_mapping()
    assert repr(with_them) == repr(without)
    assert rendered_files(with_them, host.layout) == rendered_files(without, host.layout)
    assert plan(with_them, host=host).to_json() == plan(without, host=host).to_json()
    assert "s3cr3t" not in json.dumps(check(with_them, host=host, document=secret).to_json())


def test_the_command_line_reads_them(run: Any, host: Host, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document("10.1.0.5")))
    code, out, _ = run("check", path)
    assert (code, "note: NODE-IP: node.kubelet.nodeIP: 10.1.0.5" in out) == (0, True)
    notes = json.loads(run("check", path, "--output", "json")[1])["notes"]
    assert [note["kind"] for note in notes] == ["NODE-IP"]
    snapshot = tmp_path / "node.json"
    snapshot.write_text(run("snapshot")[1])
    assert "NODE-IP" not in run("check", path, "--snapshot", snapshot)[1]
    path.write_text(json.dumps({"hostRouting": SECTION, "node": "10.1.0.5", "networking": [3]}))
    code, out, err = run("check", path)
    assert (code, "NODE-IP" in out, err) == (0, False, "")
