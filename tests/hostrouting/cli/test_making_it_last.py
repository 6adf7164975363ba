"""Tests that the hints on what ``fix --format ip`` has printed make it last, run literally."""

from __future__ import annotations

import errno
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backends import FailingBackend
from emergency import DELETING, delete_printed
from wanted import section

import phases
from hostrouting import Config, Host, RemoveHostRouting, RouteError, check
from hostrouting.kernel.port import read_routes
from hostrouting.model.rules import rule_words
from hostrouting.routes.printed import read_printed
from hostrouting.testing import FakeKernel

pytestmark = pytest.mark.usefixtures("judged_here")

Run = Callable[..., tuple[int, str, str]]
Write = Callable[[object], Path]

H200 = "172.16.0.0/16"
OTHER = "10.50.0.0/16"
HALVES = ("172.16.0.0/17", "172.16.128.0/17")
_HINT = re.compile(r"(?:make it last|gateway|first): ((?:hostrouting|ip) [^|\n]*? && [^|\n;]*)")


def hint_in(said: str) -> str:
    found = _HINT.search(said)
    assert found is not None, said
    return found[1]


def literally(run: Run, kernel: FakeKernel, hint: str) -> int:
    """Run a hint as a shell does. Return the exit code of the last command that ran."""
    for command in hint.split(" && "):
        words = shlex.split(command)
        if words[0] == "ip":
            delete_printed(kernel, DELETING)
            continue
        assert words[0] == "hostrouting", hint
        code, _, err = run(*words[1:])
        if code:
            assert not read_printed([kernel]) or words[1] != "apply", err
            return code
    return 0


def doctors_hint(run: Run, *given: object) -> str:
    findings = json.loads(run("doctor", *given, "--output", "json")[1])["findings"]
    (found,) = (each for each in findings if each["kind"] == "not-lasting")
    return str(found["hint"].removeprefix("to make it last: "))


def emergency(run: Run, kernel: FakeKernel, *given: object) -> None:
    code, out, _ = run("fix", *given, "--format", "ip")
    assert (code, "ip -4 r" in out) == (0, True)
    kernel.ip(out)


def leaves_by_eth0(host: Host) -> bool:
    return not check(Config.from_mapping({"hostRouting": EXPECTS}), host=host).findings


EXPECTS = section(cidrs=[H200], uplinks=["eth0"])


def default(host: Host, **config: Any) -> Path:
    """Write the default CONFIG."""
    path = host.layout.config
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"hostRouting": config}))
    return path


def in_a_file(run: Run, write: Write, host: Host) -> tuple[object, ...]:
    return (write({"hostRouting": EXPECTS}),)


def installed_from_a_file(run: Run, write: Write, host: Host) -> tuple[object, ...]:
    run("apply", write({"hostRouting": EXPECTS}))
    return ()


def beside_a_colleagues_default(run: Run, write: Write, host: Host) -> tuple[object, ...]:
    default(host, **section(cidrs=["10.99.0.0/16"], uplinks=["ib0"]))
    return installed_from_a_file(run, write, host)


def in_the_default(run: Run, write: Write, host: Host) -> tuple[object, ...]:
    default(host, **EXPECTS)
    return ()


def installed_from_the_default(run: Run, write: Write, host: Host) -> tuple[object, ...]:
    default(host, **EXPECTS)
    run("apply")
    return ()


STATES = [
    in_a_file,
    installed_from_a_file,
    beside_a_colleagues_default,
    in_the_default,
    installed_from_the_default,
]
WAYS = ["check", "nagios", "doctor", "named"]


def told_by(run: Run, way: str, host: Host, given: tuple[object, ...]) -> str:
    if way == "doctor" and host.layout.manifest.exists():
        return doctors_hint(run, *given)
    if way == "named" and host.layout.manifest.exists():
        return hint_in("".join(run("plan", *(given or [host.layout.manifest]))[1:]))
    words = ["check", *given]
    if way == "nagios":
        line = run(*words, "--output", "nagios")[1]
        found = re.search(r"see: hostrouting (check[^|;]*)", line)
        assert found is not None, line
        words = [*shlex.split(found[1])]
    return hint_in("".join(run(*words)[1:]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_hint_works_literally(
    run: Run,
    write: Write,
    kernel: FakeKernel,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: Callable[..., tuple[object, ...]],
    way: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = state(run, write, host)
    emergency(run, kernel, *given)
    assert leaves_by_eth0(host)
    hint = told_by(run, way, host, given)
    assert literally(run, kernel, hint) == 0, hint
    assert (read_printed([kernel]), leaves_by_eth0(host)) == ((), True), hint


@pytest.mark.parametrize("way", ["check", "doctor"])
def test_a_cidr_that_config_lacks_is_added(
    run: Run, write: Write, kernel: FakeKernel, host: Host, way: str
) -> None:
    """The typical emergency is a forgotten CIDR."""
    path = write({"hostRouting": section(cidrs=["10.244.0.0/16"])})
    assert run("apply", path)[0] == 0
    code, out, _ = run("fix", "--cidr", H200, "--uplink", "eth0", "--format", "ip")
    in_place = f"hostrouting fix --in-place --cidr {H200} --uplink eth0 CONFIG"
    assert (code, f"({in_place})" in out) == (0, True)
    kernel.ip(out)
    hint = told_by(run, way, host, (path,))
    fix = f"hostrouting fix --in-place --cidr {H200} {path}"
    assert hint == f"{fix} && {DELETING} && hostrouting apply {path}"
    assert literally(run, kernel, hint) == 0
    assert (read_printed([kernel]), leaves_by_eth0(host)) == ((), True)


def test_an_uplink_that_config_lacks_is_added(
    run: Run, write: Write, kernel: FakeKernel, host: Host
) -> None:
    kernel.ip("route del default via 10.1.0.1 dev eth0")
    kernel.ip("route add default via 10.1.0.1 dev eth0 metric 100")
    kernel.ip("route add default via 172.16.0.254 dev ib0 metric 5")
    path = write({"hostRouting": section(cidrs=["10.244.0.0/16"])})
    emergency(run, kernel, "--cidr", OTHER, "--uplink", "eth0")
    hint = hint_in(run("check", path)[1])
    assert hint.startswith(f"hostrouting fix --in-place --cidr {OTHER} --uplink eth0 {path} && ")
    assert literally(run, kernel, hint) == 0
    expects = {"hostRouting": section(cidrs=[OTHER], uplinks=["eth0"])}
    assert not check(Config.from_mapping(expects), host=host).findings
    assert read_printed([kernel]) == ()


def test_a_default_with_the_fix_is_only_to_be_applied(
    run: Run, write: Write, kernel: FakeKernel, host: Host
) -> None:
    installed_from_the_default(run, write, host)
    emergency(run, kernel)
    assert run("fix", "--in-place")[0] == 0
    told = f"{DELETING} && hostrouting apply {host.layout.config}"
    assert hint_in(run("check")[1]) == told
    assert doctors_hint(run) == told
    assert literally(run, kernel, told) == 0
    assert leaves_by_eth0(host)


def test_a_plan_of_another_file_does_not_name_the_default(
    run: Run, write: Write, kernel: FakeKernel, host: Host
) -> None:
    """Nothing is installed, and the default CONFIG is a colleague's."""
    default(host, **section(cidrs=["10.99.0.0/16"]))
    overlap = {"expectedCidrs": ["10.244.0.0/16"]}
    path = write({"hostRouting": {"routeOverlap": overlap, "waitSeconds": 0}})
    emergency(run, kernel, "--cidr", H200, "--uplink", "eth0")
    said = "".join(run("plan", path)[1:])
    assert hint_in(said).startswith(f"hostrouting fix --in-place --cidr {H200} CONFIG")
    assert str(host.layout.config) not in said


def test_nothing_is_deleted_before_what_would_fail(
    run: Run, write: Write, kernel: FakeKernel
) -> None:
    """Another program's rule decides before that of the listed interface."""
    static = {"hostRouting": EXPECTS | section(*HALVES, cidrs=[H200], keep=["ib0"])}
    path = write(static)
    emergency(run, kernel, path)
    kernel.ip("route add 172.16.0.0/16 dev eth0 table 50")
    kernel.ip("rule add pref 2100 from 172.16.0.10 lookup 50")
    hint = hint_in(run("check", path)[1])
    assert hint.startswith("hostrouting fix --in-place")
    assert literally(run, kernel, hint) != 0
    assert read_printed([kernel])


def test_commands_for_what_config_lists_name_apply_first(
    run: Run, write: Write, kernel: FakeKernel
) -> None:
    path = write({"hostRouting": EXPECTS | section(*HALVES, cidrs=[H200], keep=["ib0"])})
    code, out, _ = run("fix", path, "--format", "ip")
    first, *rest = out.splitlines()
    assert (code, first) == (0, f"# hostrouting apply {path} does the same, and lasts.")
    assert "the gate holds each start" in rest[0]
    assert rest[1] == f"#   {DELETING}"
    kernel.ip(out)
    assert run("apply", path)[0] == 1, "beside the printed rules"


@pytest.mark.parametrize("is_installed", [False, True])
def test_remove_deletes_what_was_printed(
    run: Run, write: Write, kernel: FakeKernel, is_installed: bool
) -> None:
    path = write({"hostRouting": EXPECTS})
    if is_installed:
        run("apply", path)
    kernel.ip("route add 10.9.0.0/16 via 10.1.0.1 dev eth0 proto static")
    others = [route for route in read_routes(kernel) if not route.is_ours]
    emergency(run, kernel, path)
    found = read_printed([kernel])[0]
    if not is_installed:
        findings = json.loads(run("doctor", "--output", "json")[1])["findings"]
        (told,) = (each for each in findings if each["kind"] == "not-lasting")
        assert (told["check"], told["severity"]) == ("leftovers", "risk")
        assert told["hint"].endswith("; to delete it: hostrouting remove")
    removed = json.loads(run("remove", "--output", "json")[1])
    assert [each["rule"] for each in removed["rules"]] == [*map(rule_words, found.rules)]
    assert {each["route"] for each in removed["routes"]} == {*map(str, found.routes)}
    assert {each["change"] for each in (*removed["rules"], *removed["routes"])} == {"removed"}
    assert read_printed([kernel]) == ()
    assert [*read_routes(kernel)] == others
    assert json.loads(run("remove", "--output", "json")[1])["changed"] is False


@pytest.mark.parametrize("failing", ["delete", "delete rule"])
def test_a_failing_removal_of_what_was_printed_lists_what_it_removed(
    kernel: FakeKernel, host: Host, failing: str
) -> None:
    kernel.ip(
        """
        route add 172.16.0.0/17 via 10.1.0.1 dev eth0 proto 216
        route add 172.16.128.0/17 via 10.1.0.1 dev eth0 proto 216
        rule add to 10.9.0.0/16 lookup main pref 90 proto 216
        rule add to 10.8.0.0/16 lookup main pref 91 proto 216
        """
    )
    (before,) = read_printed([kernel])
    backend = FailingBackend(kernel, {failing: {2: errno.EBUSY}})
    with pytest.raises(RouteError) as caught:
        phases.run(RemoveHostRouting(host=Host(backend, host.units, host.layout)))
    (left,) = read_printed([kernel])
    gone = caught.value.changes
    assert (len(gone.rules), len(gone.routes)) == (
        len(before.rules) - len(left.rules),
        len(before.routes) - len(left.routes),
    )
    assert gone
