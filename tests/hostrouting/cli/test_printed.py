"""Tests that all commands know what ``fix --format ip`` has printed, whatever is left of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dual_stack
import pytest
from emergency import DELETING, delete_printed
from wanted import section

from hostrouting import Config, Host
from hostrouting.doctor.examine import examine
from hostrouting.kernel.port import read_routes
from hostrouting.routes.printed import read_printed
from hostrouting.testing import FakeKernel

pytestmark = pytest.mark.usefixtures("judged_here")

Run = Callable[..., tuple[int, str, str]]

TOLD = "the next boot has none of what hostrouting fix --format ip printed ("
BESIDE = (
    "what hostrouting fix --format ip printed is still there beside CONFIG's, "
    "and doesn't follow a gateway"
)
WITHOUT = "note: this is about the host without what hostrouting fix --format ip printed"
ENOUGH = "commands alone don't fix everything"
SERVICES = "10.96.0.0/12"
VPN = f"""\
link add wg0
address add 10.8.0.2/24 dev wg0
route add {SERVICES} dev wg0 table 77
rule add pref 5270 from all to {SERVICES} lookup 77"""


def h200(kernel: FakeKernel) -> list[str]:
    return ["172.16.0.0/16"]


def vpn_beside_a_route(kernel: FakeKernel) -> list[str]:
    """Return CIDRs for which a fix has a pair of rules and a route, and keeps nothing."""
    kernel.ip(VPN)
    kernel.ip("route add 10.50.0.0/16 dev wg0")
    return [SERVICES, "10.50.0.0/16"]


def vpn_rules_only(kernel: FakeKernel) -> list[str]:
    kernel.ip(VPN)
    return [SERVICES]


STATES = [h200, vpn_beside_a_route, vpn_rules_only]


def pasted(run: Run, write: Any, kernel: FakeKernel, cidrs: list[str]) -> Path:
    """Install a gate in STRICT mode after an emergency."""
    path: Path = write({"hostRouting": section(cidrs=cidrs) | {"uplinks": ["eth0"]}})
    assert run("check", path)[0] == 1
    kernel.ip(run("fix", path, "--format", "ip")[1])
    assert run("check", path)[0] == 0
    return path


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_command_knows_what_was_printed(
    run: Run, write: Any, kernel: FakeKernel, host: Host, state: Callable[[FakeKernel], list[str]]
) -> None:
    path = pasted(run, write, kernel, state(kernel))
    commands: list[list[Any]] = [["check", path], ["check", path, "--output", "nagios"]]
    for words in (*commands, ["fix", path], ["plan", path], ["apply", path], ["doctor", path]):
        said = "".join(run(*words)[1:])
        assert said.count(TOLD) == 1, words
        assert DELETING in said or "nagios" in words, words
    assert run("check", path, "--output", "nagios")[0] == 1
    findings = examine(Config.load(path), host=host, config_name=str(path)).findings
    (found,) = (each for each in findings if each.kind == "not-lasting")
    assert found.hint == (
        f"to make it last: hostrouting fix --in-place {path} && {DELETING} && "
        f"hostrouting apply {path}"
    )


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_hint_makes_it_last(
    run: Run, write: Any, kernel: FakeKernel, state: Callable[[FakeKernel], list[str]]
) -> None:
    """``fix`` judges the host as the next boot finds it, although the check passes."""
    path = pasted(run, write, kernel, state(kernel))
    printed = run("fix", path, "--format", "ip")[1]
    assert "ip -4 r" in printed, "the same commands again"
    code, out, err = run("fix", "--in-place", path)
    assert (code, out.startswith("replaced"), err.count(WITHOUT)) == (0, True, 1)
    code, out, err = run("fix", "--in-place", path)
    assert (code, out.splitlines()[0], TOLD in err) == (0, "nothing to change", True)
    delete_printed(kernel, err)
    assert run("apply", path)[0] == 0
    assert read_printed([kernel]) == ()
    code, out, err = run("check", path)
    assert (code, TOLD in out) == (0, False)


TO_SERVICES = {"to": SERVICES, "priority": 5269}
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
LISTED = [
    # CONFIG's entries fix everything, a part, or only together with the fix's.
    section(*HALVES, cidrs=["172.16.0.0/16"], keep=["ib0"]),
    section(*HALVES, cidrs=["172.16.0.0/16", SERVICES]),
    section(cidrs=["172.16.0.0/16", SERVICES], rules=[TO_SERVICES]),
    section(SERVICES, cidrs=[SERVICES]),
]


@pytest.mark.parametrize("listed", LISTED)
def test_the_printed_commands_are_enough_without_apply(
    run: Run, write: Any, kernel: FakeKernel, listed: dict[str, Any]
) -> None:
    kernel.ip(VPN)
    kernel.ip("route add 10.96.0.0/13 dev wg0")
    path = write({"hostRouting": listed | {"uplinks": ["eth0"]}})
    assert run("check", path)[0] == 1
    code, out, err = run("fix", path, "--format", "ip")
    assert (code, ENOUGH in err) == (0, False)
    kernel.ip(out)
    assert run("check", path)[0] == 0


def test_commands_that_are_not_enough_are_a_failure(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Only ``apply`` removes or changes a route that is there."""
    kernel.ip("route add 10.50.0.0/16 dev ib0 proto 217")
    path = write({"hostRouting": section(cidrs=["172.16.0.0/16", "10.50.0.0/16"])})
    code, out, err = run("fix", path, "--format", "ip")
    assert (code, f"{ENOUGH}: OVERLAP: expected CIDR 10.50.0.0/16" in err) == (1, True)
    kernel.ip(out)
    assert run("check", path)[0] == 1
    assert run("fix", path, "--format", "config")[0] == 0


def test_a_wrong_route_of_config_is_not_printed(run: Run, write: Any, kernel: FakeKernel) -> None:
    wrong = {"destination": "172.16.3.0/24", "dev": "ib0", "gateway": "onlink"}
    path = write(
        {"hostRouting": section(wrong, *HALVES, cidrs=["172.16.0.0/16"], uplinks=["eth0"])}
    )
    code, out, _ = run("fix", path, "--format", "ip")
    assert (code, "172.16.3.0/24" in out, HALVES[0] in out) == (1, False, True)


def test_what_is_left_beside_the_installed_config_is_to_be_deleted(
    run: Run, write: Any, kernel: FakeKernel, host: Host
) -> None:
    """An operator has made the routes last, and forgotten to delete the printed ones."""
    kernel.ip("route add 10.50.0.0/16 dev ib0")
    path = pasted(run, write, kernel, ["10.50.0.0/16"])
    for rule in kernel.facts().rules:
        if rule.is_printed:
            kernel.ip(f"rule del {rule} pref {rule.preference} proto 216")
    assert run("fix", "--in-place", path)[0] == 0
    assert TOLD in run("check", path)[1], "it isn't installed yet"
    code, _, err = run("apply", path)
    assert (code, BESIDE in err) == (0, True)
    assert "(printed by fix --format ip, already there)" in run("plan", path)[1]
    told = f"{BESIDE}: {DELETING} && hostrouting apply {path}"
    for word in ("check", "fix"):
        said = "".join(run(word, path)[1:])
        assert (told in said, TOLD in said) == (True, False), word
    line = run("check", path, "--output", "nagios")[1]
    assert f"{BESIDE}; to make it last, see: hostrouting check {path};" in line
    installed = f"{DELETING} && hostrouting apply {host.layout.manifest}"
    for word in ("plan", "apply"):
        said = "".join(run(word, path)[1:])
        assert (f"{BESIDE}: {installed}" in said, TOLD in said) == (True, False), word
    findings = examine(Config.load(path), host=host).findings
    (found,) = (each for each in findings if each.kind == "not-lasting")
    assert (found.message, found.hint) == (BESIDE, installed)
    delete_printed(kernel, told)
    assert [run(word, path)[0] for word in ("apply", "check")] == [0, 0]
    assert BESIDE not in run("check", path)[1]


def test_a_route_that_a_printed_one_refuses_is_not_to_be_removed(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """The printed route still goes to the gateway of another day."""
    kernel.ip("route add 10.50.0.0/16 via 10.1.0.77 dev eth0 proto 216")
    path = write({"hostRouting": section("10.50.0.0/16", cidrs=["10.50.0.0/16"])})
    code, _, err = run("apply", path)
    hint = (
        "hint: hostrouting fix --format ip printed it; hostrouting check says how to make it last"
    )
    assert (code, hint in err, "staticRoutes.routes" in err) == (1, True, False)
    told = f"to make it last: {DELETING} && hostrouting apply {path}"
    checked = run("check", path)[1]
    assert told in checked
    delete_printed(kernel, checked)
    assert run("apply", path)[0] == 0


def test_the_named_uplink_is_needed_to_make_it_last(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    path = write({"hostRouting": section(cidrs=h200(kernel))})
    code, out, _ = run("fix", path, "--format", "ip", "--uplink", "eth0")
    in_place = f"hostrouting fix --in-place --uplink eth0 {path}"
    assert (code, f"({in_place})" in out) == (0, True)
    kernel.ip(out)
    for word in ("check", "fix"):
        said = "".join(run(word, path, "--uplink", "eth0")[1:])
        assert f"to make it last: {in_place} && " in said
    assert run("fix", "--in-place", "--uplink", "eth0", path)[0] == 0
    assert "--uplink" not in run("fix", path, "--format", "ip", "--uplink", "eth0")[1]


def test_routes_are_known_without_the_rules(run: Run, write: Any, kernel: FakeKernel) -> None:
    """An operator has deleted the rules that an earlier note quoted, and nothing else."""
    path = pasted(run, write, kernel, h200(kernel))
    kernel.ip("rule del from 172.16.0.10 table 2170000 pref 2170")
    for words in (["check"], ["check", "--output", "nagios"], ["plan"], ["apply"], ["doctor"]):
        assert TOLD in "".join(run(*words, path)[1:]), words
    assert run("fix", "--in-place", path)[0] == 0
    static = json.loads(path.read_text())["hostRouting"]["staticRoutes"]
    assert len(static["routes"]) == 2
    assert static["keep"] == ["ib0"]


def test_a_snapshot_has_what_was_printed(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    path = pasted(run, write, kernel, h200(kernel))
    snapshot = tmp_path / "after.json"
    snapshot.write_text(run("snapshot")[1])
    assert TOLD in run("check", path, "--snapshot", snapshot)[1]
    code, out, _ = run("fix", path, "--snapshot", snapshot)
    assert code == 0
    assert json.loads(out)["hostRouting"]["staticRoutes"]["keep"] == ["ib0"]


def test_judge_names_the_hosts_that_have_what_was_printed(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    cidrs = h200(kernel)
    (tmp_path / "before.json").write_text(run("snapshot")[1])
    path = pasted(run, write, kernel, cidrs)
    (tmp_path / "after.json").write_text(run("snapshot")[1])
    given = ("judge", path, tmp_path / "before.json", tmp_path / "after.json")
    assert json.loads(run(*given, "--output", "json")[1])["printed"] == ["after"]
    told = "1 host has what hostrouting fix --format ip printed, which goes at the next boot: after"
    assert told in run(*given)[1].splitlines()


def test_a_snapshots_sentence_is_about_what_config_lists(
    run: Run, write: Any, kernel: FakeKernel, tmp_path: Path
) -> None:
    """The advice is right, installed or not."""
    path = pasted(run, write, kernel, h200(kernel))
    snapshot = tmp_path / "after.json"
    snapshot.write_text(run("snapshot")[1])
    assert run("fix", "--in-place", path)[0] == 0
    for word in ("check", "fix"):
        said = "".join(run(word, path, "--snapshot", snapshot)[1:])
        told = f"{BESIDE}: {DELETING} && hostrouting apply"
        assert (told in said, TOLD in said) == (True, False), word


def test_printed_ipv6_routes_are_told_though_ipv4_alone_is_expected(
    run: Run, write: Any, tmp_path: Path
) -> None:
    snapshot = tmp_path / "node-6.json"
    dual_stack.host(dual_stack.DEFAULT, "fd00:10::/64 dev eth0 proto 216").save(snapshot)
    path = write({"hostRouting": section(cidrs=[SERVICES], uplinks=["eth0"])})
    for word in ("check", "fix", "plan"):
        said = "".join(run(word, path, "--snapshot", snapshot)[1:])
        assert (said.count(TOLD), "ip -6 route flush table all proto 216" in said) == (1, True)
    assert "printed, which goes at the next boot: node-6" in run("judge", path, snapshot)[1]


def test_another_programs_routes_and_rules_arent_printed_ones(
    run: Run, write: Any, kernel: FakeKernel
) -> None:
    """Without the mark, the very same routes and rules last as far as is known."""
    path: Path = write({"hostRouting": section(cidrs=h200(kernel)) | {"uplinks": ["eth0"]}})
    kernel.ip(run("fix", path, "--format", "ip")[1].replace(" proto 216", " proto static"))
    before = (kernel.facts().rules, read_routes(kernel))
    for words in (["check"], ["fix"], ["apply"], ["doctor"], ["remove"]):
        given = () if words == ["remove"] else (path,)
        assert "printed" not in "".join(run(*words, *given)[1:]), words
    code, out, _ = run("fix", "--in-place", path)
    assert (code, out) == (0, "nothing to change\n")
    assert (kernel.facts().rules, read_routes(kernel)) == before
