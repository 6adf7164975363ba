"""Test the command diff: what it compares, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from scenario import play
from wanted import SHADOWED, section

import phases
from hostrouting import Config, Configure, Host
from hostrouting.kernel.port import Write
from hostrouting.model.routes import NextHop, Route
from hostrouting.testing import FakeKernel

Run = Callable[..., tuple[int, str, str]]

CIDR = IPv4Network("172.16.9.0/24")


@pytest.fixture
def changed(kernel: FakeKernel, recorded: Path) -> Path:
    """Return a snapshot of the node, which has got a route since."""
    kernel.write(Write.ADD, [Route(CIDR, (NextHop("eth0"),))])
    return recorded


def test_one_snapshot_is_compared_with_this_host(run: Run, changed: Path) -> None:
    code, out, _ = run(
        "diff", changed, "--cidr", "172.16.0.0/16", "--cidr", "10.96.0.0/12", "--output", "json"
    )
    document: dict[str, Any] = json.loads(out)
    assert (code, document["differs"]) == (1, True)
    (difference,) = document["changed"]
    assert difference["ranges"] == [str(CIDR)]
    assert [result["devs"] for result in difference["results"][0]["before"]] == [["ib0"]]
    assert [result["devs"] for result in difference["results"][0]["after"]] == [["eth0"]]
    assert [cause["kind"] for cause in difference["causes"]] == ["route"]


def test_two_equal_snapshots_do_not_differ(run: Run, recorded: Path) -> None:
    code, out, _ = run("diff", recorded, recorded, "--cidr", "172.16.0.0/16")
    assert (code, "172.16.0.0/16  unchanged" in out) == (0, True)


def test_snapshots_without_a_time_are_a_and_b(run: Run, recorded: Path) -> None:
    document = json.loads(recorded.read_text())
    del document["time"]
    recorded.write_text(json.dumps(document))
    assert " between A and B\n" in run("diff", recorded, recorded)[1]


def test_each_cidr_has_a_bar_before_and_after(run: Run, changed: Path) -> None:
    code, out, _ = run("diff", changed, "--cidr", "172.16.0.0/18")
    bars = [line.split()[-1] for line in out.splitlines() if "before " in line or "after  " in line]
    assert code == 1
    assert [bar.replace("·", "") for bar in bars] == ["A", "B"]
    assert bars[0].index("A") == bars[1].index("B") == 9


def test_an_interface_that_was_made_again_is_named(run: Run, recorded: Path) -> None:
    """It has another index, which explains nothing and which no line shows."""
    document = json.loads(recorded.read_text())
    for link in document["links"]:
        if link["ifname"] == "ib0":
            link["ifindex"] += 100
    again = recorded.with_name("again.json")
    again.write_text(json.dumps(document))
    code, out, _ = run("diff", recorded, again, "--cidr", "172.16.0.0/16", "-v")
    assert (code, "by another index: link ib0" in out) == (0, True)


def test_what_a_snapshot_lacks_is_unknown(run: Run, recorded: Path) -> None:
    document = json.loads(recorded.read_text()) | {"isTorn": True}
    torn = recorded.with_name("torn.json")
    torn.write_text(json.dumps(document))
    code, out, _ = run("diff", recorded, torn, "--output", "json")
    assert (code, json.loads(out)["differs"]) == (2, None)
    code, out, _ = run("diff", recorded, torn)
    assert (code, "isn't known: the host changed while" in out) == (2, True)
    assert ("no lookup differs" in out, "unchanged" in out) == (False, False)


def test_a_config_names_the_cidrs(run: Run, changed: Path, write: Callable[[object], Path]) -> None:
    path = write({"hostRouting": section(cidrs=["172.16.0.0/16"])})
    code, out, _ = run("diff", changed, "--config", path, "--output", "json")
    assert (code, json.loads(out)["cidrs"]) == (1, ["172.16.0.0/16"])


def test_installed_cidrs_are_compared_by_default(run: Run, host: Host, recorded: Path) -> None:
    phases.run(
        Configure(Config.from_mapping({"hostRouting": section(SHADOWED, mode="WARN")}), host=host)
    )
    code, out, _ = run("diff", recorded, "--output", "json")
    assert (code, json.loads(out)["cidrs"]) == (1, [SHADOWED])


def test_a_file_that_is_no_snapshot_is_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert run("diff", path)[0] == 78
    assert run("diff", tmp_path / "missing.json")[0] == 78


def test_other_changes_are_listed_if_verbose(run: Run, kernel: FakeKernel, recorded: Path) -> None:
    route = Route(IPv4Network("192.0.2.0/24"), (NextHop("ib0"),))
    kernel.write(Write.ADD, [route])
    assert str(route) not in run("diff", recorded, "--cidr", "172.16.0.0/16")[1]
    assert f"+ route {route}" in run("diff", recorded, "--cidr", "172.16.0.0/16", "-v")[1]


def test_a_cause_is_shown_once(run: Run, changed: Path) -> None:
    _, out, _ = run("diff", changed, "--cidr", "172.16.0.0/16", "--cidr", "172.16.0.0/18")
    assert out.count(f"+ route {CIDR}") == 1
    assert out.count("by the same change as in 172.16.0.0/16") == 1


def save_as(recorded: Path, **values: str) -> Path:
    """Write the snapshot again with other values."""
    path = recorded.with_name("other.json")
    path.write_text(json.dumps(json.loads(recorded.read_text()) | values))
    return path


def test_snapshots_of_two_hosts_are_warned_of(run: Run, recorded: Path) -> None:
    code, _, err = run("diff", recorded, save_as(recorded, host="another-host"))
    assert (code, "another-host" in err) == (0, True)
    assert run("diff", recorded, recorded)[2] == ""


def test_an_older_second_snapshot_is_warned_of(run: Run, recorded: Path) -> None:
    old, new = "2020-01-01T00:00:00Z", json.loads(recorded.read_text())["time"]
    code, _, err = run("diff", recorded, save_as(recorded, time=old))
    assert (code, old in err, new in err) == (0, True, True)
    assert run("diff", save_as(recorded, time=old), recorded)[2] == ""


def test_a_third_argument_is_no_config(run: Run, recorded: Path) -> None:
    code, _, err = run("diff", recorded, recorded, "config.json")
    assert (code, "--config CONFIG" in err) == (64, True)


def test_counts_have_their_plurals(run: Run, kernel: FakeKernel, recorded: Path) -> None:
    """Of the kinds, only "address" isn't made plural by an s."""
    play(kernel, "link add docker0\naddr add 172.30.0.1/24 dev docker0")
    said = "explain nothing here: 1 link, 1 address, "
    assert said in run("diff", recorded, "--cidr", "172.16.0.0/16")[1]
    play(kernel, "link add virbr0\naddr add 172.31.0.1/24 dev virbr0")
    said = "explain nothing here: 2 links, 2 addresses, "
    assert said in run("diff", recorded, "--cidr", "172.16.0.0/16")[1]


def test_rules_of_one_preference_are_counted_one_by_one(
    run: Run, kernel: FakeKernel, recorded: Path
) -> None:
    play(kernel, "\n".join(f"rule add pref 2170 from 10.9.0.{n} lookup 77" for n in range(1, 9)))
    said = "explain nothing here: 8 rules\n"
    assert said in run("diff", recorded, "--cidr", "172.16.0.0/16")[1]


def test_a_range_with_exceptions_is_shown_as_such(
    run: Run, kernel: FakeKernel, recorded: Path
) -> None:
    """All of Docker's network leaves through docker0, except its bridge's own addresses."""
    play(kernel, "link add docker0\naddr add 172.17.0.1/16 dev docker0")
    _, out, _ = run("diff", recorded, "--cidr", "172.16.0.0/12")
    beside = "172.17.0.1/32 172.17.255.255/32"
    assert f"all of 172.17.0.0/16 but {beside}: via 10.1.0.1 dev eth0" in out
    document = json.loads(run("diff", recorded, "--cidr", "172.16.0.0/12", "--output", "json")[1])
    assert [len(each["ranges"]) for each in document["changed"]] == [30, 1, 1]


def test_few_or_scattered_ranges_are_listed(run: Run, kernel: FakeKernel, recorded: Path) -> None:
    odd = [f"route add 10.96.{number}.0/24 dev ib0" for number in range(1, 17, 2)]
    play(kernel, "\n".join(odd[:2]))
    said = "10.96.1.0/24 10.96.3.0/24: via"
    assert said in run("diff", recorded, "--cidr", "10.96.0.0/12")[1]
    play(kernel, "\n".join(odd[2:]))
    said = "10.96.1.0/24 10.96.3.0/24 10.96.5.0/24 10.96.7.0/24 and 4 more: via"
    assert said in run("diff", recorded, "--cidr", "10.96.0.0/12")[1]
