"""Test the command judge: which files and folders it reads, with which config, and its lists."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import repeat, takewhile
from pathlib import Path
from typing import Any

import attrs
import pytest
from file_trees import write_file
from node import add_nics, shadowed_kernel
from scenario import play
from wanted import SHADOWED, section

import phases
from hostrouting import Config, Configure, Host, judge
from hostrouting.cli.fleet import fleet_text
from hostrouting.fleet.groups import FleetReport
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.links import Hardware
from hostrouting.testing import FakeKernel

pytestmark = pytest.mark.usefixtures("judged_here")

Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[3]
MORE = "and 2 more cautions: -v"
CIDR = "172.16.0.0/16"
CONFIG = {"hostRouting": section(cidrs=[CIDR])}
FINE = take_snapshot(shadowed_kernel())


def snapshots(folder: Path, count: int, own: str = "node-{}") -> Path:
    """Write the snapshots of nodes that have other names than their files."""
    for number in range(count):
        snapshot = attrs.evolve(FINE, host=own.format(number))
        write_file(folder / f"gpu-{number:04}.json", snapshot.to_text())
    return folder


def hosts(out: str) -> list[list[str]]:
    return [group["hosts"] for group in json.loads(out)["groups"]]


def contested(metric: int, *lines: str) -> Snapshot:
    """Return a healthy node whose storage network offers a default route, too."""
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", eth1="10.2.0.4/24")
    play(kernel, "route add default via 10.1.0.1 dev eth0 proto dhcp metric 100")
    play(kernel, f"route add default via 10.2.0.1 dev eth1 proto dhcp metric {metric}")
    for line in lines:
        play(kernel, line)
    return take_snapshot(kernel)


@pytest.fixture
def today(tmp_path: Path) -> Path:
    return snapshots(tmp_path / "today", 3)


def test_a_folder_stands_for_its_json_files(elsewhere: Run, today: Path) -> None:
    """Neither another tool's files nor hidden ones are snapshots."""
    write_file(today / "._gpu-0000.json", "")
    write_file(today / "config.json", json.dumps(CONFIG))
    words = ("judge", today / "config.json", today, "--output", "json")
    told = ""
    for others, name in enumerate(("gpu-0003.json.gz", "gpu-0004.JSON", "more/gpu-0005.json"), 1):
        code, out, err = elsewhere(*words)
        assert (code, err) == (1, told)
        assert hosts(out) == [["gpu-0000", "gpu-0001", "gpu-0002"]]
        write_file(today / name, "")
        said = "1 other file is" if others == 1 else f"{others} other files are"
        told = f"hostrouting: {said} ignored in {today}: only *.json is read\n"
    assert elsewhere(*words)[2] == told


def test_standard_input_is_read_by_the_command_itself(
    elsewhere: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard input of the processes that judge is another one."""
    text = attrs.evolve(FINE, host="piped").to_text()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, out, err = elsewhere("judge", "--cidr", CIDR, "-", "--output", "json")
    assert (code, err, hosts(out)) == (1, "", [["piped"]])
    left, right = os.pipe()
    with open(left), open(right, "w"):
        path = f"/dev/fd/{left}"
        code, out, err = elsewhere("judge", "--cidr", CIDR, path)
    assert (code, f"{path}: is not a regular file" in err, "or - for" in err) == (78, True, True)
    os.mkfifo(tmp_path / "pipe")
    code, out, _ = elsewhere("judge", "--cidr", CIDR, tmp_path / "pipe")
    assert (code, "or - for standard input" in out) == (2, True)


def test_folders_and_files_may_be_mixed(elsewhere: Run, today: Path, tmp_path: Path) -> None:
    other = snapshots(tmp_path / "other", 1) / "gpu-0000.json"
    other = other.rename(other.with_name("late.json"))
    _, out, _ = elsewhere("judge", "--cidr", CIDR, other, today, "--output", "json")
    assert hosts(out) == [["late", "gpu-0000", "gpu-0001", "gpu-0002"]]


def test_the_config_in_the_folder_is_no_snapshot(elsewhere: Run, today: Path) -> None:
    config = write_file(today / "config.json", json.dumps(CONFIG))
    _, out, _ = elsewhere("judge", config, today, "--output", "json")
    assert hosts(out) == [["gpu-0000", "gpu-0001", "gpu-0002"]]


@pytest.mark.parametrize(
    "words",
    ["CONFIG --output json FOLDER", "--output json CONFIG FOLDER", "CONFIG FOLDER --output json"],
)
def test_options_may_stand_anywhere(elsewhere: Run, today: Path, write: Any, words: str) -> None:
    given = {"CONFIG": write(CONFIG), "FOLDER": today}
    code, out, _ = elsewhere("judge", *(given.get(word, word) for word in words.split()))
    assert (code, len(hosts(out)[0])) == (1, 3)


def test_cidrs_are_added_to_the_configs(elsewhere: Run, today: Path, write: Any) -> None:
    config = write({"hostRouting": section(cidrs=["192.168.0.0/16"])})
    assert elsewhere("judge", config, today)[0] == 0
    code, out, _ = elsewhere("judge", config, today, "--cidr", CIDR)
    assert (code, f"OVERLAP {CIDR} by ib0" in out) == (1, True)


def test_without_a_config_the_installed_one_is_used(run: Run, host: Host, today: Path) -> None:
    config = Config.from_mapping({"hostRouting": section(SHADOWED, mode="WARN")})
    phases.run(Configure(config, host=host))
    code, out, _ = run("judge", today, "--output", "json")
    failures = json.loads(out)["groups"][0]["failures"]
    assert (code, [each["cidr"] for each in failures]) == (1, [SHADOWED])
    assert hosts(run("judge", *sorted(today.iterdir()), "--output", "json")[1]) == hosts(out)


def test_without_any_config_it_is_an_error(elsewhere: Run, today: Path) -> None:
    code, _, err = elsewhere("judge", today)
    assert (code, "--cidr 172.16.0.0/16" in err) == (78, True)


def test_a_broken_first_file_is_a_broken_config(elsewhere: Run, today: Path) -> None:
    """Judging with another config instead would be worse."""
    empty = write_file(today / "empty.json", "")
    code, _, err = elsewhere("judge", empty, today / "gpu-0000.json")
    assert (code, "hint: the first of several arguments is CONFIG, unless" in err) == (78, True)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"schema": 1}', "[]"])
def test_with_cidrs_a_broken_first_file_is_no_snapshot(
    elsewhere: Run, today: Path, text: str
) -> None:
    broken = write_file(today / "broken.json", text)
    words = ("--cidr", CIDR, "--output", "json")
    for given in ((broken, today / "gpu-0000.json"), (today / "gpu-0000.json", broken)):
        code, out, _ = elsewhere("judge", *given, *words)
        assert (code, hosts(out)) == (1, [["gpu-0000"], ["broken"]])
    assert elsewhere("judge", broken, *words)[0] == 2


@pytest.mark.parametrize("given", [(), ("--cidr", CIDR)], ids=["alone", "with a CIDR"])
def test_a_config_that_comes_last_is_named(
    elsewhere: Run, today: Path, write: Any, given: tuple[str, ...]
) -> None:
    config = write(CONFIG)
    code, _, err = elsewhere("judge", *given, today, config)
    assert (code, f"{config} is a CONFIG, and not the first argument" in err) == (64, True)
    assert f"hint: hostrouting judge {config} {today}\n" in err


def test_what_is_no_snapshot_may_be_a_config(elsewhere: Run, today: Path) -> None:
    misspelt = write_file(today.with_name("bad.json"), json.dumps({"hostRoutng": {}}))
    _, out, _ = elsewhere("judge", "--cidr", CIDR, misspelt, today)
    assert out.splitlines()[-2].endswith("; it has none of a snapshot's lists: is it a CONFIG?")


def test_a_forgotten_folder_is_asked_for(elsewhere: Run, write: Any) -> None:
    code, _, err = elsewhere("judge", write(CONFIG))
    assert (code, "is a CONFIG, and no snapshot is given" in err) == (64, True)


def test_a_file_given_twice_counts_once(elsewhere: Run, today: Path) -> None:
    link = today.with_name("latest")
    link.symlink_to(today)
    given = (today / "gpu-0001.json", today, link)
    _, out, _ = elsewhere("judge", "--cidr", CIDR, *given, "--output", "json")
    assert hosts(out) == [["gpu-0001", "gpu-0000", "gpu-0002"]]


def test_files_of_one_name_have_their_folders(elsewhere: Run, today: Path, tmp_path: Path) -> None:
    other = snapshots(tmp_path / "other", 1)
    broken = write_file(other / "gpu-0001.json", "")
    _, out, _ = elsewhere("judge", "--cidr", CIDR, today, other, "--output", "json")
    named = [f"{today}/gpu-0000", f"{today}/gpu-0001", "gpu-0002", f"{other}/gpu-0000"]
    assert hosts(out) == [named, [str(broken.with_suffix(""))]]


def test_a_folder_without_snapshots_is_an_error(elsewhere: Run, tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    folder.mkdir()
    code, _, err = elsewhere("judge", "--cidr", CIDR, folder)
    assert (code, f"there is no snapshot (*.json) in the folder {folder}" in err) == (2, True)


def test_a_misspelt_folder_is_an_error(elsewhere: Run, today: Path, write: Any) -> None:
    """A file that is missing beside others is a host without a verdict."""
    misspelt = today.with_name("tody")
    code, out, err = elsewhere("judge", write(CONFIG), misspelt)
    assert (code, out, f"there is no file or folder {misspelt}" in err) == (2, "", True)
    code, out, _ = elsewhere("judge", write(CONFIG), today, misspelt)
    assert (code, "no-snapshot: there is no such file" in out) == (1, True)


def test_unknown_options_are_still_errors(elsewhere: Run, today: Path) -> None:
    assert elsewhere("judge", "--cidr", CIDR, "--all", today)[0] == 64


def test_a_fix_that_keeps_interfaces_is_recognised_beside_pods(
    run: Run, elsewhere: Run, kernel: FakeKernel, tmp_path: Path, write: Any
) -> None:
    """The snapshot has the sources of connections to pods, whose interfaces have no addresses."""
    play(kernel, "link add azv1\nroute add 10.244.0.2 dev azv1 proto static scope link")
    document = json.loads(run("snapshot")[1])
    for link in document["links"]:
        if link["ifname"] == "ib0":
            link["link_type"] = "infiniband"
    node = write_file(tmp_path / "gpu-0001.json", json.dumps(document))
    config = write({"hostRouting": section(cidrs=[CIDR, "10.244.0.0/16"])})
    assert elsewhere("fix", "--in-place", config, "--snapshot", node)[0] == 0
    assert json.loads(config.read_text())["hostRouting"]["staticRoutes"]["keep"] == ["ib0"]
    code, out, _ = elsewhere("judge", config, node)
    assert (code, "fix: CONFIG already lists what fixes this" in out) == (1, True)


# --- what needs a look ----------------------------------------------------------------------------


def test_a_doubtful_uplink_is_a_group_of_its_own(elsewhere: Run, tmp_path: Path) -> None:
    """The check passes by a default route that a storage network's DHCP server offers."""
    for name, metric in {"gpu-1": 50, "gpu-2": 60, "gpu-3": 200}.items():
        contested(metric).save(tmp_path / f"{name}.json")
    FINE.save(tmp_path / "gpu-4.json")
    given = ("judge", "--cidr", "10.96.0.0/12", tmp_path)
    code, out, _ = elsewhere(*given)
    rows = [line.split("; name")[0] for line in out.splitlines() if line.startswith("•")]
    several = "several interfaces have a default route, and the one through"
    assert (code, rows) == (
        0,
        [
            f"• 2  ok by eth1; CONTESTED: {several} eth1 wins",
            f"• 1  ok by eth0; CONTESTED: {several} eth0 wins",
        ],
    )
    _, out, _ = elsewhere(*given, "--output", "json")
    groups = json.loads(out)["groups"]
    assert [(each["hosts"], [n["kind"] for n in each["decisions"]]) for each in groups] == [
        (["gpu-1", "gpu-2"], ["CONTESTED"]),
        (["gpu-3"], ["CONTESTED"]),
        (["gpu-4"], []),
    ]
    page = elsewhere(*given, "--output", "html")[1]
    assert page.count('<section class="doubtful">') == 2
    assert "ok by eth1; CONTESTED: several interfaces" in page


def test_the_same_doubt_of_several_groups_is_told_once(elsewhere: Run, tmp_path: Path) -> None:
    contested(50).save(tmp_path / "gpu-1.json")
    contested(50, "route add blackhole 10.97.0.0/16").save(tmp_path / "gpu-2.json")
    text = elsewhere("judge", "--cidr", "10.96.0.0/12", tmp_path)[1]
    first, second = (line for line in text.splitlines() if "CONTESTED" in line)
    assert ("several interfaces" in first, second.endswith("; CONTESTED, as on gpu-1")) == (
        True,
        True,
    )


def test_hosts_that_expect_another_uplink_are_named(elsewhere: Run, today: Path) -> None:
    for number in range(3, 9):
        text = attrs.evolve(FINE, host=f"node-{number}").to_text().replace('"eth0"', '"eth1"')
        write_file(today / f"gpu-{number:04}.json", text)
    words = ("judge", "--cidr", CIDR, today)
    expected = "eth1 (6 hosts) or eth0 (3: gpu-0000, gpu-0001, gpu-0002)"
    assert f"✗ 9  OVERLAP {CIDR} by ib0, expected {expected}\n" in elsewhere(*words)[1]
    (group,) = json.loads(elsewhere(*words, "--output", "json")[1])["groups"]
    assert group["failures"][0]["expectedDevs"] == []
    told = {each["devs"][0]: each["hosts"] for each in group["failures"][0]["expecting"]}
    assert told["eth0"] == ["gpu-0000", "gpu-0001", "gpu-0002"]
    assert len(told["eth1"]) == 6


def test_hosts_whose_packets_take_opposite_defaults_are_no_group(
    elsewhere: Run, tmp_path: Path
) -> None:
    """Although the same two interfaces are named as uplinks."""
    for name, metric in {"gpu-1": 50, "gpu-2": 60, "gpu-3": 200}.items():
        contested(metric).save(tmp_path / f"{name}.json")
    named = ("--cidr", "10.96.0.0/12", "--uplink", "eth0", "--uplink", "eth1")
    _, out, _ = elsewhere("judge", *named, tmp_path, "--output", "json")
    hosts = [each["hosts"] for each in json.loads(out)["groups"]]
    assert hosts == [["gpu-1", "gpu-2"], ["gpu-3"]]


def test_hosts_with_other_choices_are_no_group() -> None:
    """Where eth0 carries pods, they fail once eth1 alone is the uplink."""
    pods = [f"route add 10.96.{node}.0/24 via 10.1.0.9 dev eth0 proto static" for node in (1, 2)]
    taken = [contested(50), *(contested(50, line) for line in pods)]
    named = [attrs.evolve(each, host=f"gpu-{number}") for number, each in enumerate(taken)]
    config = Config.from_mapping({"hostRouting": section(cidrs=["10.96.0.0/12"])})
    groups = judge(named, config).groups
    assert {group.hosts: group.decisions[0].choices for group in groups} == {
        ("gpu-0",): ((("eth1",), ()), (("eth0",), ("eth1",))),
        ("gpu-1", "gpu-2"): ((("eth1",), ("eth0",)), (("eth0",), ("eth1",))),
    }
    assert {group.decisions[0].winner for group in groups} == {("eth1",)}


def test_hosts_with_other_obstacles_are_no_group() -> None:
    """The addresses and the InfiniBand interface differ, too, which makes no group."""
    obstacles = {
        "gateway-1": (("10.1.0.4/24", "via 10.1.0.1 dev eth0"), ("docker0", "10.1.0.1/24")),
        "gateway-2": (("10.1.9.6/24", "via 10.1.9.1 dev eth0"), ("docker0", "10.1.9.1/24")),
        "no-default": (("10.1.0.4/24", ""), ("docker0", "10.1.0.1/24")),
        "other": (("10.1.0.4/24", "via 10.1.0.1 dev eth0"), ("cni0", "10.1.0.1/24")),
    }
    taken: list[Snapshot] = []
    for name, ((own, default), (bridge, address)) in obstacles.items():
        kernel = FakeKernel()
        add_nics(kernel, eth0=own, ib0=f"172.16.{len(taken)}.5/16", **{bridge: address})
        if default:
            play(kernel, f"route add default {default}")
        taken.append(attrs.evolve(take_snapshot(kernel), host=name))
    named = {**section(cidrs=[CIDR]), "uplinks": ["eth0"]}
    groups = judge(taken, Config.from_mapping({"hostRouting": named})).groups
    reasons = {group.hosts: group.unfixable[0].reason for group in groups}
    assert reasons.keys() == {("gateway-1", "gateway-2"), ("no-default",), ("other",)}
    assert "also an address of docker0" in reasons["gateway-1", "gateway-2"]
    assert "missing is the default route" in reasons["no-default",]


def test_hosts_with_other_uplinks_are_a_group_if_their_text_is_the_same() -> None:
    taken: list[Snapshot] = []
    for dev in ("eth0", "ens3"):
        kernel = FakeKernel()
        add_nics(kernel, **{dev: "10.1.0.4/24"})
        play(kernel, f"route add default via 10.1.0.1 dev {dev}")
        taken.append(attrs.evolve(take_snapshot(kernel), host=dev))
    ruled = section(cidrs=["10.96.0.0/16"], rules=[{"to": "10.96.0.0/16", "priority": 5269}])
    (group,) = judge(taken, Config.from_mapping({"hostRouting": ruled})).groups
    lacking = "the kernel lacks CONFIG's rules for 10.96.0.0/16: hostrouting apply"
    assert (group.hosts, group.cautions) == (("eth0", "ens3"), (lacking,))


def test_old_snapshots_are_named(elsewhere: Run, tmp_path: Path) -> None:
    days = {"new": 20, "yesterday": 19, "old": 18, "older": 1}
    for name, day in days.items():
        snapshot = attrs.evolve(FINE, time=f"2026-11-{day:02}T09:00:00Z")
        snapshot.save(tmp_path / f"{name}.json")
    for name, time in {"timeless": None, "odd": "noon"}.items():
        attrs.evolve(FINE, time=time).save(tmp_path / f"{name}.json")
    given = ("judge", "--cidr", CIDR, tmp_path)
    (tmp_path / "empty.json").write_text("")
    lines = (
        "2 snapshots are more than a day older than the newest (new): old, older",
        "2 snapshots have no time: odd, timeless",
    )
    assert tuple(elsewhere(*given)[1].splitlines()[1:3]) == lines
    page = elsewhere(*given, "--output", "html")[1]
    assert [f"<p>{line}</p>" in page for line in lines] == [True, True]
    told = json.loads(elsewhere(*given, "--output", "json")[1])
    assert (told["outdated"], told["newest"]) == (["old", "older"], "new")
    assert told["untimed"] == ["odd", "timeless"]
    times = {each["hosts"][0]: each["report"]["time"] for each in told["groups"]}
    assert times == {"new": "2026-11-20T09:00:00Z", "empty": None}
    alone = json.loads(
        elsewhere("judge", "--cidr", CIDR, tmp_path / "odd.json", "--output", "json")[1]
    )
    assert [each["report"]["time"] for each in alone["groups"]] == [None]
    (tmp_path / "empty.json").unlink()
    (tmp_path / "new.json").unlink()
    assert (
        "1 snapshot is more than a day older than the newest (yesterday): older"
        in elsewhere(*given)[1]
    )
    (tmp_path / "older.json").unlink()
    assert "older than the newest" not in elsewhere(*given)[1]


def test_a_long_list_of_old_snapshots_is_whole_if_verbose(elsewhere: Run, tmp_path: Path) -> None:
    folder = snapshots(tmp_path, 20)
    for path in folder.glob("gpu-*.json"):
        attrs.evolve(Snapshot.load(path), time="2020-11-18T09:00:00Z").save(path)
    attrs.evolve(FINE, time="2020-11-20T09:00:00Z").save(folder / "new.json")
    line = "20 snapshots are more than a day older than the newest (new): "
    told = elsewhere("judge", "--cidr", CIDR, folder)[1].splitlines()[1]
    assert told.startswith(f"{line}gpu-0000 gpu-0001 ")
    assert told.endswith("gpu-0015 (and 4 more, -v lists all)")
    assert "gpu-0018, gpu-0019\n" in elsewhere("judge", "--cidr", CIDR, folder, "-v")[1]


def test_a_clock_that_is_ahead_makes_no_snapshot_old(elsewhere: Run, tmp_path: Path) -> None:
    folder = snapshots(tmp_path, 2)
    attrs.evolve(FINE, time="2999-11-20T09:00:00Z").save(folder / "ahead.json")
    given = ("judge", "--cidr", CIDR, folder)
    _, line, *others = elsewhere(*given)[1].splitlines()
    assert line == "warning: 1 snapshot is from the future: a clock is ahead: ahead"
    assert "older than the newest" not in "\n".join(others)
    told = json.loads(elsewhere(*given, "--output", "json")[1])
    assert (told["ahead"], told["outdated"]) == (["ahead"], [])
    assert told["newest"] in ("gpu-0000", "gpu-0001")


def test_a_picture_has_the_snapshots_time(elsewhere: Run, tmp_path: Path) -> None:
    attrs.evolve(FINE, time="2026-11-20T09:00:00Z").save(tmp_path / "old.json")
    page = elsewhere("judge", "--cidr", CIDR, tmp_path, "--output", "html")[1]
    (picture,) = re.findall('svg.xml;base64,([^"]*)"', page)
    assert "2026-11-20T09:00:00Z" in base64.b64decode(picture).decode()


def test_a_failure_counts_although_ipv6_has_no_verdict(elsewhere: Run, today: Path) -> None:
    """A script that asks for exit code 1 would miss a node that is proven to be broken."""
    given = ("judge", "--cidr", CIDR, "--cidr", "fd00:10:96::/108", today)
    code, out, _ = elsewhere(*given)
    counts, group, *_ = out.splitlines()
    assert (code, counts) == (1, "3 snapshots: 0 ok, 3 overlap, 0 unknown")
    assert group.startswith(f"✗ 3  OVERLAP {CIDR} by ib0, expected eth0; unknown: ")
    (told,) = json.loads(elsewhere(*given, "--output", "json")[1])["groups"]
    assert (told["verdict"], told["report"]["verdict"]) == ("overlap", "unknown")


@pytest.mark.parametrize("cidr", [CIDR, "10.96.0.0/16"], ids=["fails", "passes"])
def test_a_snapshot_without_ipv6_leaves_open_whether_apply_would_fail(
    elsewhere: Run, write: Any, today: Path, cidr: str
) -> None:
    static = section("fd00:10:96::/108", cidrs=[cidr])
    given = (write({"hostRouting": static}), today)
    report = json.loads(elsewhere("judge", *given, "--output", "json")[1])
    (group,) = report["groups"]
    count = len(group["hosts"])
    assert (report["wouldFail"], report["mayFail"], group["wouldFail"]) == (0, count, None)
    (line,) = group["hints"] + group["cautions"]
    assert "apply would fail isn't known: can't check IPv6: the snapshot holds no IPv6" in line
    plan = ("plan", given[0], "--snapshot", today / "gpu-0000.json", "--output", "json")
    error = json.loads(elsewhere(*plan)[1])["error"]
    assert error == "can't check IPv6: the snapshot holds no IPv6 routes"


def test_cautions_are_told(elsewhere: Run, today: Path) -> None:
    caution = "caution: the node then sends to neighbours of ib0 in 172.16.0.0/16 through eth0"
    given = ("judge", "--cidr", CIDR, today)
    for flags in ((), ("-v",)):
        lines = elsewhere(*given, *flags)[1].splitlines()
        (line,) = (line.strip() for line in lines if "caution" in line)
        assert line.startswith(caution)
    (told,) = json.loads(elsewhere(*given, "--output", "json")[1])["groups"]
    assert [f"caution: {line}".startswith(caution) for line in told["cautions"]] == [True]
    assert f"<p>{caution}" in elsewhere(*given, "--output", "html")[1]


PLAIN = "10.99.1.0/24"
TOLD = {
    "a hint, and a question": ("docker0", [], ("hint: docker0 ", "nothing is proposed for ")),
    "a question": ("eth1", [], ("nothing is proposed for ",)),
    "an error": (
        "docker0",
        [{"destination": PLAIN, "dev": "eth9"}],
        ("hint: first fix why apply would fail: ",),
    ),
}


@pytest.mark.parametrize(("dev", "listed", "starts"), TOLD.values(), ids=TOLD)
def test_text_json_and_html_carry_the_same(
    elsewhere: Run, write: Any, tmp_path: Path, dev: str, listed: list[Any], starts: tuple[str, ...]
) -> None:
    kernel = FakeKernel()
    add_nics(kernel, eth0="10.1.0.4/24", **{dev: "10.98.0.1/24"})
    play(kernel, "route add default via 10.1.0.1 dev eth0 proto dhcp")
    play(kernel, f"route add {PLAIN} via 10.98.0.9 dev {dev} proto static")
    snapshot = tmp_path / "gpu-1.json"
    take_snapshot(kernel).save(snapshot)
    given = ("judge", write({"hostRouting": section(*listed, cidrs=[PLAIN])}), snapshot)
    text = [line.strip() for line in elsewhere(*given)[1].splitlines()]
    page = html.unescape(elsewhere(*given, "--output", "html")[1])
    (group,) = json.loads(elsewhere(*given, "--output", "json")[1])["groups"]
    lines = [line for line in text if line.startswith(("hint: ", "no ", "nothing "))]
    assert [start for start in starts if not any(map(str.startswith, lines, repeat(start)))] == []
    hints = [f"hint: {line}" for line in group["hints"]]
    told = [line for line in lines if line not in hints]
    reasons = [each["reason"] for each in group["unfixable"]]
    assert [*told, *hints] == lines
    answers = [line for line in text if line.startswith("if ")]
    first = told
    told = [f"{told[0]}; {'; '.join(answers)}"] if answers else told
    assert [line.partition(": ")[2] for line in told] == reasons
    assert [line for line in hints if f"<p>{line}</p>" not in page] == []
    assert [line for line in first if f"<p>On gpu-1 {line}</p>" not in page] == []
    assert [line for line in answers if f"<li>{line}</li>" not in page] == []
    assert ("; apply would fail" in page) is group["wouldFail"] is bool(listed)


STORAGE = {
    "gpu-1": ["10.99.1.0/24", "10.99.3.0/24", "10.99.5.0/24", "10.99.6.0/24"],
    "gpu-2": ["10.99.1.0/24", "10.99.3.0/24"],
    "gpu-3": ["10.99.7.0/24"],
}


def test_a_long_question_is_told_once_and_each_reference_leads_to_it(
    elsewhere: Run, write: Any, tmp_path: Path
) -> None:
    """Routes of a storage network are in the way, different ones on each host."""
    for name, destinations in STORAGE.items():
        kernel = FakeKernel()
        add_nics(kernel, eth0="10.1.0.4/24", eth1="10.98.0.1/24")
        play(kernel, "route add default via 10.1.0.1 dev eth0 proto dhcp")
        for each in destinations:
            play(kernel, f"route add {each} via 10.98.0.9 dev eth1 proto static")
        attrs.evolve(take_snapshot(kernel), host=name).save(tmp_path / f"{name}.json")
    config = section(cidrs=["10.99.1.0/24", "10.99.3.0/24", "10.99.4.0/22"])
    given = ("judge", write({"hostRouting": config}), *sorted(tmp_path.glob("gpu-*.json")))
    groups = json.loads(elsewhere(*given, "--output", "json")[1])["groups"]
    whole = [each["reason"] for group in groups for each in group["unfixable"]]
    hosts = [group["hosts"][0] for group in groups for _ in group["unfixable"]]
    for flags in ((), ("-v",)):
        text = elsewhere(*given, *flags)[1]
        told = text.split("nothing is proposed for ")[1:]
        asked: dict[str, list[str]] = {}
        for host, paragraph in zip(hosts, told, strict=True):
            cidr, _, reason = paragraph.partition(": ")
            first, *others = map(str.strip, reason.splitlines())
            answers = [*takewhile(re.compile("if ").match, others)]
            asked[f"{cidr} on {host}"] = [
                first,
                *(_followed(each, host, asked) for each in answers),
            ]
        assert ["; ".join(each) for each in asked.values()] == whole
        assert text.count("as for ") == 8
        assert text.count("after which packets") == len(STORAGE)


def _followed(answer: str, host: str, asked: dict[str, list[str]]) -> str:
    """Return an answer, or the one that it refers to."""
    start, _, place = answer.partition(", as for ")
    if not place:
        return answer
    _, *answers = asked[place if " on " in place else f"{place} on {host}"]
    (meant,) = (each for each in answers if each.startswith(f"{start}, "))
    return meant


def test_of_many_cautions_the_first_are_told(today: Path) -> None:
    report = judge(sorted(today.iterdir()), Config.from_mapping(CONFIG))
    (group,) = report.groups
    cautions = tuple(f"ib{number} is cut off; really" for number in range(6))
    text = fleet_text(FleetReport((attrs.evolve(group, cautions=cautions),)), None)
    told = [line.strip() for line in text.splitlines() if "caution" in line]
    assert told == [*(f"caution: ib{number} is cut off" for number in range(4)), MORE]


def test_a_reason_that_differs_in_rule_and_address_is_told_once(
    elsewhere: Run, tmp_path: Path
) -> None:
    """As of hosts with Cilium, whose ip is older than the kernel."""
    for number, table in {1: 99, 2: 99, 3: 52}.items():
        kernel = FakeKernel()
        add_nics(kernel, eth0=f"10.1.{number}.4/24")
        play(kernel, f"route add default via 10.1.{number}.1 dev eth0")
        play(kernel, f"route add default via 10.1.{number}.9 dev eth0 table {table}")
        kernel.ip(f"rule add preference {100 + number // 3} lookup {table}")
        document = take_snapshot(kernel).to_document() | {"kernel": "Linux 6.18.1"}
        old = document | {"schema": None, "host": None, "ip": "ip utility, iproute2-6.1.0"}
        write_file(tmp_path / f"gpu-{number}.json", json.dumps(old))
    given = ("judge", "--cidr", "10.96.0.0/16", tmp_path)
    _, group, hosts = elsewhere(*given)[1].splitlines()
    start = (
        "? 3  unknown: check-failed: the snapshot doesn't show whether the rule 100: from all (and"
    )
    assert group.startswith(f"{start} perhaps more selectors) lookup 99 matches, which decides")
    assert group.endswith(" (on gpu-1, and alike on the others: -v)")
    assert hosts.strip() == "gpu-1, gpu-2, gpu-3"
    lines = elsewhere(*given, "-v")[1].splitlines()[3:]
    assert [line.split(": the snapshot")[0].strip() for line in lines] == ["gpu-1, gpu-2", "gpu-3"]
    (told,) = json.loads(elsewhere(*given, "--output", "json")[1])["groups"]
    assert [each["hosts"] for each in told["reasons"]] == [["gpu-1", "gpu-2"], ["gpu-3"]]


# --- lists of hosts -------------------------------------------------------------------------------


def test_hosts_go_by_their_files_beside_their_own_names(elsewhere: Run, today: Path) -> None:
    _, out, _ = elsewhere("judge", "--cidr", CIDR, today)
    named, own = out.splitlines()[-2:]
    assert named.strip() == "gpu-0000, gpu-0001, gpu-0002"
    assert own.strip() == "own names: gpu-0000 is node-0, gpu-0001 is node-1, gpu-0002 is node-2"


def test_equal_names_are_listed_once(elsewhere: Run, tmp_path: Path) -> None:
    folder = snapshots(tmp_path, 1, own="gpu-0000")
    assert elsewhere("judge", "--cidr", CIDR, folder)[1].splitlines()[-1].strip() == "gpu-0000"


def test_a_name_with_its_domain_is_no_other_name(elsewhere: Run, tmp_path: Path) -> None:
    attrs.evolve(FINE, host="gpu-1.example").save(tmp_path / "gpu-1.json")
    attrs.evolve(FINE, host="gpu-2").save(tmp_path / "gpu-2.example.json")
    attrs.evolve(FINE, host="gpu-30.example").save(tmp_path / "gpu-3.json")
    _, out, _ = elsewhere("judge", "--cidr", CIDR, tmp_path)
    assert out.splitlines()[-1].strip() == "own names: gpu-3 is gpu-30.example"


def test_two_snapshots_of_a_host_are_mentioned(elsewhere: Run, tmp_path: Path) -> None:
    for name, own in {"a": "node", "b": "node", "c": ""}.items():
        attrs.evolve(FINE, host=own).save(tmp_path / f"{name}.json")
    lines = elsewhere("judge", "--cidr", CIDR, tmp_path)[1].splitlines()
    assert lines[1] == "2 snapshots are of node: a, b"
    assert lines[-1].strip() == "own names: a is node, b is node"
    for number in range(10):
        attrs.evolve(FINE, host=f"node-{number // 2}").save(tmp_path / f"x{number}.json")
    line = elsewhere("judge", "--cidr", CIDR, tmp_path)[1].splitlines()[1]
    assert line.startswith("2 snapshots are of node: a, b; 2 snapshots are of node-0: x0, x1; ")
    assert line.endswith("2 snapshots are of node-2: x4, x5; and 2 more")
    line = elsewhere("judge", "--cidr", CIDR, tmp_path, "-v")[1].splitlines()[1]
    assert line.endswith("2 snapshots are of node-4: x8, x9")


def test_a_nameless_snapshot_has_no_own_name(elsewhere: Run, tmp_path: Path) -> None:
    files = [tmp_path / folder / "bond.json" for folder in ("one", "two")]
    for file in files:
        write_file(file, attrs.evolve(FINE, host="").to_text())
    assert "own names" not in elsewhere("judge", "--cidr", CIDR, *files)[1]


def test_a_long_list_is_whole_if_verbose(elsewhere: Run, tmp_path: Path) -> None:
    folder = snapshots(tmp_path / "many", 40)
    _, out, _ = elsewhere("judge", "--cidr", CIDR, folder)
    assert "gpu-0014 gpu-0015 (and 24 more, -v lists all)\n" in out
    assert "gpu-0039" not in out
    _, out, _ = elsewhere("judge", "--cidr", CIDR, folder, "-v")
    assert "gpu-0038, gpu-0039\n" in out
    assert "gpu-0039 is node-39" in out


def test_ansible_takes_a_pasted_list(elsewhere: Run, today: Path) -> None:
    """Even if the list was wrapped by a terminal."""
    manager = pytest.importorskip("ansible.inventory.manager", reason="Ansible isn't installed")
    _, out, _ = elsewhere("judge", "--cidr", CIDR, today)
    pasted = out.splitlines()[-2].strip()
    names = ["gpu-0000", "gpu-0001", "gpu-0002"]
    for text in (pasted, pasted.replace(" ", "\n      ")):
        (word,) = shlex.split(f"'{text}'")
        assert manager.split_host_pattern(word) == names


def test_ansible_refuses_a_shortened_list(elsewhere: Run, tmp_path: Path) -> None:
    """Half of a group must not be taken for the whole. A shell refuses it without quotes."""
    manager = pytest.importorskip("ansible.inventory.manager", reason="Ansible isn't installed")
    _, out, _ = elsewhere("judge", "--cidr", CIDR, snapshots(tmp_path / "many", 20))
    pasted = out.splitlines()[-2].strip()
    assert "gpu-0015" in pasted
    assert all(" " in pattern for pattern in manager.split_host_pattern(pasted))
    assert subprocess.run(["sh", "-nc", f"limit {pasted}"], stderr=subprocess.DEVNULL).returncode


# --- docs/howto/fleet.md --------------------------------------------------------------------------


SSH = """\
#!/bin/sh
[ "$1" = -n ] && shift
cat "of-$1.json"
"""


def test_the_steps_of_the_fleets_page(tmp_path: Path) -> None:
    """The config that is made by them is judged for each host."""
    page = (ROOT / "docs/howto/fleet.md").read_text()
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (by_ssh,) = (block for block in blocks if "ssh HOST" in block)
    (fixing,) = re.findall(r"`(hostrouting fix [^`]*)`", page)
    bare, fine = FakeKernel(), FakeKernel()
    for kernel in (bare, fine):
        add_nics(kernel, eth0="10.1.0.4/24")
    play(fine, "route add default via 10.1.0.1 dev eth0")
    texts = {
        "fine": take_snapshot(fine).to_text(),
        "gpu-0107": FINE.to_text(),
        "bare": take_snapshot(bare).to_text(),
        "empty": "",
    }
    for name, text in texts.items():
        write_file(tmp_path / f"of-{name}.json", text)
    write_file(tmp_path / "hosts", "fine\ngpu-0107\n")
    write_file(tmp_path / "hosts-without-hostrouting", "bare\nempty\n")
    write_file(tmp_path / "snap.sh", "")
    config = {"hostRouting": section(cidrs=[CIDR], mode="WARN")}
    write_file(tmp_path / "config.json", json.dumps(config))
    write_file(tmp_path / "bin/ssh", SSH, mode=0o755)
    program = f'#!/bin/sh\nexec "{sys.executable}" -m hostrouting "$@"\n'
    write_file(tmp_path / "bin/hostrouting", program, mode=0o755)
    (tmp_path / "snapshots").mkdir()
    env = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    def shell(line: str) -> list[str]:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        return sorted(done.stdout.splitlines())

    assert shell(by_ssh) == []
    judging = "hostrouting judge config.json snapshots"
    shell(" ".join(fixing.split()))
    told = "\n".join(shell(judging))
    assert "CONFIG already lists what fixes this" in told
    assert "? 1  unknown: no-default-route" in told
    assert "? 1  unknown: no-snapshot: is empty" in told


def test_hosts_whose_infiniband_has_no_address_yet_have_a_heading(run: Run, tmp_path: Path) -> None:
    """Their check passes now, and may fail once the agent has set the addresses."""
    pending = FakeKernel()
    for dev in ("ib0", "ib1", "ib2"):
        pending.add_link(dev, hardware=Hardware.INFINIBAND)
    add_nics(pending, eth0="10.1.0.4/24")
    play(pending, "route add default via 10.1.0.1 dev eth0")
    ready = FakeKernel()
    add_nics(ready, eth0="10.1.0.4/24")
    play(ready, "route add default via 10.1.0.1 dev eth0")
    for name, kernel in (("pending", pending), ("ready", ready)):
        take_snapshot(kernel).save(tmp_path / f"{name}.json")
    code, out, _ = run("judge", "--cidr", CIDR, tmp_path)
    rows = [line for line in out.splitlines() if line[:1] in "✓•✗"]
    assert code == 0
    assert sorted(rows) == [
        "• 1  ok; PENDING: ib0-ib2 have no IPv4 address yet, and may shadow once they have one",
        "✓ 1  ok",
    ]
