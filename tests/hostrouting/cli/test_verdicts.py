"""Tests that commands print the verdict of the boot, of IPv6 CIDRs, and of no CIDR at all."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import pytest
from dual_stack import DEFAULT, RIVAL
from dual_stack import host as snapshot_of
from file_trees import write_file
from planning import manifest_of
from wanted import SHADOWED, section

import phases
from hostrouting import Config, ConfigureReport, Host
from hostrouting.boot.layout import CHECK
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.overlap.findings import UnknownReason, Verdict
from hostrouting.tasks.configure import Configure

FINE = "10.96.0.0/12"


@pytest.mark.parametrize("verdict", ["overlap", "unknown"])
@pytest.mark.parametrize("cidr", [SHADOWED, FINE])
def test_the_boot_script_gets_a_verdict_on_its_config(
    run: Any, host: Host, monkeypatch: pytest.MonkeyPatch, cidr: str, verdict: str
) -> None:
    write_file(host.layout.manifest, manifest_of(Config(), host.layout).to_text())
    text = json.dumps(Config(route_overlap={"expectedCidrs": [cidr]}).to_mapping()).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    code, out, err = run("check", "--at-boot", verdict)
    first, *lines = out.splitlines()
    fails = cidr == SHADOWED
    found = "overlap" if fails else "ok"
    assert first == f"{found} on {host.name} for config {sha256(text).hexdigest()}"
    assert (code, len(lines)) == (fails, fails)
    fix = f'fix: add to hostRouting.staticRoutes.routes: {{"destination": "{SHADOWED}"}}'
    assert (fix in err, host.layout.report.exists()) == (fails, fails)
    assert ("the script says overlap, and the host is now ok" in err) == (
        verdict == "overlap" and not fails
    )
    if fails:
        assert lines[0].startswith(f"OVERLAP: expected CIDR {SHADOWED} ")
        assert json.loads(host.layout.report.read_text())["verdict"] == "overlap"


@pytest.mark.parametrize("manifest", ["{", "[]", '{"parts": 5}', None])
@pytest.mark.parametrize("cidr", [SHADOWED, FINE])
def test_the_boot_script_gets_a_verdict_despite_a_broken_manifest(
    run: Any, host: Host, monkeypatch: pytest.MonkeyPatch, cidr: str, manifest: str | None
) -> None:
    """The manifest tells which routes the fix needn't name; None stands for a folder."""
    if manifest is None:
        host.layout.manifest.mkdir(parents=True)
    else:
        write_file(host.layout.manifest, manifest)
    text = json.dumps(Config(route_overlap={"expectedCidrs": [cidr]}).to_mapping()).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    code, out, err = run("check", "--at-boot", "unknown")
    assert (code, out.partition(" on ")[0]) == ((1, "overlap") if cidr == SHADOWED else (0, "ok"))
    assert str(host.layout.manifest) in err


# --- no interface is as the config names it ------------------------------------------------------


@pytest.mark.parametrize("words", ["check", "plan", "fix", "apply", "check --output nagios"])
@pytest.mark.parametrize("routes", [(), (SHADOWED,)], ids=str)
def test_each_command_names_a_missing_uplink(
    run: Any, host: Host, words: str, routes: tuple[str, ...]
) -> None:
    wanted = section(*routes, uplinks=["eth9"], waitSeconds=0)
    write_file(host.layout.config, json.dumps({"hostRouting": wanted}))
    _, out, err = run(*words.split())
    assert "interface eth9, which hostRouting.uplinks names" in out + err
    assert (
        "add that interface, or name the node's uplinks:"
        ' set hostRouting\'s "uplinks": ["eth0"], then: hostrouting apply' in out + err
    )
    assert "waitSeconds" not in out + err


# --- no CIDR is expected --------------------------------------------------------------------------


@pytest.fixture(
    params=[(routes, mode) for routes in ((), (SHADOWED,)) for mode in ("WARN", "STRICT")], ids=str
)
def config(request: Any, host: Host) -> Path:
    (host.layout.units / "systemd-nspawn@.service").write_text(
        "[Service]\nExecStart=/bin/true\nRestart=always\n"
    )
    routes, mode = request.param
    return write_file(
        host.layout.config, json.dumps({"hostRouting": section(*routes, cidrs=(), mode=mode)})
    )


# Each command's arguments, its exit code, and whether it returns a verdict.
COMMANDS = [
    (("check",), 2, True),
    (("check", "--output", "nagios"), 3, True),
    (("check", "--output", "prometheus"), 2, False),
    (("fix",), 0, False),
    (("apply",), 0, False),
    (("apply", "--try", "600"), 0, False),
]


@pytest.mark.parametrize(
    ("words", "code", "is_asked"), COMMANDS, ids=[" ".join(words) for words, *_ in COMMANDS]
)
def test_no_command_gives_a_verdict(
    run: Any, config: Path, words: tuple[str, ...], code: int, is_asked: bool
) -> None:
    got, out, err = run(*words)
    assert got == code, err
    assert not out.startswith("ok ")
    assert " OK " not in out
    if is_asked:
        assert "unknown" in out.lower()
    assert "hostrouting_failures" not in out
    told = [line for line in out.splitlines() if line.startswith("hostrouting_cidr_verdict")]
    assert told in ([], ['hostrouting_cidr_verdict{cidr="",verdict="unknown"} 1'])


def test_the_verdict_is_unknown_and_never_raised(host: Host, config: Path) -> None:
    report: ConfigureReport = phases.run(Configure(Config.load(config), host=host))
    assert (report.overlap.verdict, report.overlap.reason_kind) == (
        Verdict.UNKNOWN,
        UnknownReason.NOTHING_EXPECTED,
    )
    assert not host.layout.script(CHECK).exists()
    assert not host.layout.marker_ok.exists()
    assert not host.layout.marker_detected.exists()


def test_the_plan_lets_the_next_start_through(run: Any, config: Path) -> None:
    next_start = json.loads(run("plan", "--output", "json")[1])["nextStart"]
    assert next_start["admitted"]
    assert "no CIDR is expected" in next_start["reason"]


def test_the_doctor_calls_it_a_risk(run: Any, config: Path) -> None:
    run("apply")
    report = json.loads(run("doctor", "--output", "json")[1])
    found = {finding["kind"]: finding["severity"] for finding in report["findings"]}
    if json.loads(config.read_text())["hostRouting"]["staticRoutes"]["routes"]:
        assert found["nothing-expected"] == "risk"
    else:
        assert "not-installed" in found


# --- IPv6 -----------------------------------------------------------------------------------------


CIDR = "fd00:10::/48"
SHADOWED_IPV6 = snapshot_of(
    DEFAULT, addresses=["fd00:10:0:7::4/64 dev rail0", "2001:db8::4/128 dev eth0"]
)
ENTRIES = [{"destination": f"fd00:10:0:7{half}::/65", "dev": "eth0"} for half in ("", ":8000")]


@pytest.fixture
def on(
    elsewhere: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command on a host's snapshot."""

    def call(snapshot: Snapshot, *words: object) -> tuple[int, str, str]:
        path = write_file(tmp_path / "node-6.json", snapshot.to_text())
        return elsewhere(*words, "--snapshot", path)

    return call


def test_a_check_names_the_failing_part_and_the_fix(on: Any) -> None:
    code, out, err = on(SHADOWED_IPV6, "check", "--cidr", CIDR, "--cidr", "10.96.0.0/12")
    assert (code, err) == (1, "")
    assert (
        "overlap on node-6: 1 of 2 expected CIDRs fails; mode WARN\nexpected interface: eth0\n"
        in out
    )
    assert (
        f"OVERLAP: expected CIDR {CIDR} (probe fd00:10:0:7::) routes via rail0, expected eth0"
        in out
    )
    assert "by fd00:10:0:7::/64 dev rail0 proto kernel metric 256" in out
    assert ",\n".join(f"  {json.dumps(entry)}" for entry in ENTRIES) in out
    assert "✓ 10.96.0.0/12  by eth0" in out


def test_a_passing_cidr_lists_its_own_interfaces(on: Any, write: Any) -> None:
    named = [
        {"cidr": "10.2.0.128/25", "devs": ["rail*"]},
        {"cidr": CIDR, "devs": ["rail0", "rail1"]},
    ]
    config = write({"hostRouting": {"routeOverlap": {"expectedCidrs": ["10.96.0.0/12", *named]}}})
    _, out, _ = on(snapshot_of(DEFAULT, f"{CIDR} via fe80::2 dev rail0"), "check", config)
    by = dict(
        line.split()[1::2] for line in out.splitlines() if line.startswith("✓") and " by " in line
    )
    assert by == {"10.96.0.0/12": "eth0", "10.2.0.128/25": "rail*", CIDR: "rail0,rail1"}


def test_a_check_names_the_family_without_a_verdict(on: Any) -> None:
    code, out, _ = on(snapshot_of(RIVAL), "check", "--cidr", CIDR, "--cidr", "10.96.0.0/12")
    assert code == 2
    assert "unknown on node-6: 1 of 2 expected CIDRs couldn't be judged; mode WARN" in out
    assert (
        "the check couldn't judge IPv6: no-default-route: missing is the default route on eth0"
        in out
    )
    assert "\n  rail0 has one" in out
    assert f"? {CIDR}  not judged" in out
    assert "ip -6 route" in out


def test_a_failure_beside_a_family_without_a_verdict_is_told(
    on: Any, elsewhere: Any, write: Any
) -> None:
    """The verdict stays unknown: more may fail."""
    words = ("check", "--cidr", CIDR, "--cidr", "10.2.0.0/24")
    code, out, _ = on(snapshot_of(RIVAL), *words)
    said = "1 of 2 expected CIDRs fails, 1 couldn't be judged"
    assert (code, out.splitlines()[0]) == (2, f"unknown on node-6: {said}; mode WARN")
    code, out, _ = on(snapshot_of(RIVAL), *words, "--output", "nagios")
    assert (code, out.startswith(f"HOSTROUTING UNKNOWN - {said}: ")) == (3, True)
    assert "; OVERLAP: expected CIDR 10.2.0.0/24 " in out
    config = write({"hostRouting": {"routeOverlap": {"expectedCidrs": [CIDR, "10.2.0.0/24"]}}})
    path = write_file(config.with_name("node-6.json"), snapshot_of(RIVAL).to_text())
    code, out, _ = elsewhere("judge", config, path)
    title = out.splitlines()[2]  # [1]: the snapshot has no time
    assert (code, "OVERLAP 10.2.0.0/24" in title, "unknown: no-default-route" in title) == (
        1,  # like any failure of a fleet
        True,
        True,
    )


def test_the_hint_is_about_the_family_that_the_reason_names(on: Any) -> None:
    _, out, _ = on(
        snapshot_of(ipv4_default=None), "check", "--cidr", CIDR, "--cidr", "10.96.0.0/12"
    )
    assert "no-default-route: table main has no unicast 0.0.0.0/0 to compare with" in out
    assert "to see why there is none: ip -4 address; ip -4 route; networkctl status" in out


def test_no_rule_is_advised_where_main_is_asked_already(on: Any, write: Any) -> None:
    narrow = (
        f"{CIDR.replace('/48', '7/128')} from 2001:db8::/64 "
        "via fe80::2 dev rail0 proto static metric 1024"
    )
    config = write(
        {"hostRouting": {"uplinks": ["eth0"], "routeOverlap": {"expectedCidrs": [CIDR]}}}
    )
    _, out, _ = on(
        snapshot_of(DEFAULT, narrow, addresses=["2001:db8::4/64 dev eth0"]), "check", config
    )
    assert f"no route fixes fd00:10::7: {narrow.replace('/128', '', 1)}" in out
    assert "decides for connections from 2001:db8::4: change that route" in out
    assert "lookup main" not in out


def test_the_machine_formats_tell_the_families(on: Any) -> None:
    words = ("check", "--cidr", CIDR, "--cidr", "10.96.0.0/12", "--output")
    code, out, _ = on(snapshot_of(RIVAL), *words, "json")
    document = json.loads(out)
    assert (code, document["verdict"], [*document["families"]]) == (2, "unknown", ["ipv4", "ipv6"])
    code, out, _ = on(snapshot_of(RIVAL), *words, "nagios")
    assert (code, "couldn't judge IPv6" in out) == (3, True)
    _, out, _ = on(snapshot_of(RIVAL), *words, "prometheus")
    assert f'cidr_verdict{{cidr="{CIDR}",verdict="unknown"}} 1' in out
    assert 'cidr_verdict{cidr="10.96.0.0/12",verdict="ok"} 1' in out
    code, out, _ = on(SHADOWED_IPV6, *words, "svg")
    assert (code, "</svg>" in out) == (1, True)


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("ip", ["ip -6 route add fd00:10:0:7::/65 via fe80::1 dev eth0 proto 216 metric 512"]),
        (
            "networkd",
            ["Destination=fd00:10:0:7::/65", "Gateway=fe80::1", "GatewayOnLink=no", "Metric=512"],
        ),
        ("netplan", ["- to: fd00:10:0:7::/65", "via: fe80::1", "metric: 512"]),
    ],
)
def test_a_fix_is_written_for_other_tools(on: Any, form: str, lines: list[str]) -> None:
    code, out, _ = on(SHADOWED_IPV6, "fix", "--cidr", CIDR, "--format", form)
    assert code == 0
    assert [line for line in lines if line not in out] == []


def test_a_fix_of_both_families_has_one_form(on: Any) -> None:
    code, out, err = on(
        SHADOWED_IPV6, "fix", "--cidr", CIDR, "--cidr", "10.2.0.0/16", "--format", "ip"
    )
    commands = [line.split(" add ")[0] for line in out.splitlines() if not line.startswith("#")]
    kept = ["ip -4 route", "ip -4 rule"]
    assert (code, commands) == (0, ["ip -4 route"] * 2 + ["ip -6 route"] * 2 + kept)
    assert "staticRoutes" not in err


def test_a_fix_is_an_entry_of_the_config(on: Any, write: Any) -> None:
    code, out, _ = on(SHADOWED_IPV6, "fix", "--cidr", CIDR)
    assert (code, json.loads(out)["hostRouting"]["staticRoutes"]["routes"]) == (0, ENTRIES)
    code, again, _ = on(SHADOWED_IPV6, "fix", "--output", "json", write(json.loads(out)))
    told = json.loads(again)
    assert (code, told["fix"]["routes"], told["fix"]["unapplied"]["routes"]) == (1, [], ENTRIES)


def test_an_address_is_explained(on: Any, elsewhere: Any) -> None:
    code, out, _ = on(SHADOWED_IPV6, "explain", "fd00:10:0:7::9")
    assert code == 1
    assert "fd00:10:0:7::/64 dev rail0 proto kernel metric 256" in out
    assert "by rail0, from fd00:10:0:7::4: not as expected" in out
    code, out, _ = on(SHADOWED_IPV6, "explain", "2001:db8:1::1")
    assert (code, "by eth0, from 2001:db8::4: as expected" in out) == (0, True)
    assert elsewhere("explain", "fe80::1")[0] == 64


def test_an_explained_lookup_without_a_route_says_so(on: Any) -> None:
    narrow = "default from 2001:db8::/64 via fe80::1 dev eth0 proto static metric 1024"
    _, out, _ = on(
        snapshot_of(narrow, addresses=["2001:db8::4/64 dev eth0"]), "explain", "fd00:10::9"
    )
    assert "no route; nothing is sent yet" in out


# --- a snapshot's time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("2026-11-20T10:00:00+01:00", "2026-11-20T10:00:00+01:00"),
        ("noon", "noon"),
        (None, "an unknown time"),
    ],
)
def test_a_check_of_a_snapshot_has_its_time(on: Any, taken: str | None, said: str) -> None:
    """An old verdict must not look like a new one."""
    snapshot = attrs.evolve(snapshot_of(RIVAL), time=taken)
    words = ("check", "--cidr", CIDR)
    assert on(snapshot, *words)[1].splitlines()[-1] == f"note: the snapshot was taken at {said}"
    time = json.loads(on(snapshot, *words, "--output", "json")[1])["time"]
    _, out, _ = on(snapshot, *words, "--output", "prometheus")
    runs = re.findall(r"^hostrouting_last_run_timestamp_seconds (.*)$", out, re.MULTILINE)
    is_old = taken is not None and taken.startswith("2026-11-20")
    assert (time, runs) == (("2026-11-20T09:00:00Z", ["1795165200"]) if is_old else (None, []))
    assert ("2026-11-20T09:00:00Z" in on(snapshot, *words, "--output", "svg")[1]) is is_old
