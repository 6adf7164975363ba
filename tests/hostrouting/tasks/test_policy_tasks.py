"""Tests of the tasks with rules and kept interfaces: waits, rollbacks, trials and commands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from typing import Any

import attrs
import pytest
from acting import is_held
from emergency import delete_printed
from recording_tasks import OnProgress
from wanted import SHADOWED, TrialSystemd, config, ours

import phases
from hostrouting import (
    Config,
    Configure,
    Host,
    Layout,
    RemoveHostRouting,
    RouteError,
    check,
    judge,
    plan,
)
from hostrouting.backend import EVERYTHING, Entries, ForwardingBackend, Selection
from hostrouting.boot.layout import ROUTES as ROUTES_PART
from hostrouting.doctor.examine import examine
from hostrouting.kernel.port import read_routes
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.kernel.taking_snapshots import take_snapshot
from hostrouting.model.routes import SIDE_TABLES
from hostrouting.overlap.findings import RouteOverlapError
from hostrouting.routes.plan import plan_now
from hostrouting.tasks.install_routes import InstallRoutes, apply_and_verify
from hostrouting.tasks.trial import ConfirmTrial, EndTrial, TryRoutes
from hostrouting.testing import FakeKernel, FakeSystemd
from phases.testing import FakeClock

T = SIDE_TABLES[0]
POD = "10.244.0.0/16"
PAIR = [f"5269: from all to {POD} lookup local", f"5269: from all to {POD} lookup main"]
KEPT = f"2170: from 172.16.0.10 lookup {T}"
ROUTES = config(SHADOWED)


def with_policy(given: Config, **more: Any) -> Config:
    keys: dict[str, Any] = {"rules": [{"to": POD, "priority": 5269}], "keep": ["ib*"]} | more
    return attrs.evolve(given, static_routes=attrs.evolve(given.static_routes, **keys))


POLICY = with_policy(ROUTES)
WIDER = with_policy(ROUTES, keep=[{"dev": "ib*", "gateway": "onlink"}])


def our_rules(kernel: FakeKernel) -> list[str]:
    return [f"{rule.preference}: {rule}" for rule in kernel.facts().rules if rule.is_ours]


def side_routes(kernel: FakeKernel) -> list[str]:
    return [str(route) for route in read_routes(kernel) if route.is_in_side_table]


# --- plans ----------------------------------------------------------------------------------------


def taken_by_an_old_ip(kernel: FakeKernel) -> Host:
    """Return a recorded host whose rules, as an old ip prints them, may lack selectors."""
    document = take_snapshot(kernel).to_document()
    old = {"kernel": "Linux 6.16.1", "ip": "ip utility, iproute2-6.1.0"}
    return Host.recorded(Snapshot.from_document(document | old | {"schema": None}))


VPN = """\
link add wg0
address add 10.8.0.2/24 dev wg0
route add default dev wg0 table 51820
rule add pref 1209 {} lookup 51820"""


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize(
    ("selector", "mode", "is_admitted"),
    [
        (f"to {SHADOWED}", "STRICT", None),
        (f"to {SHADOWED}", "WARN", None),
        ("from 172.16.0.10", "WARN", None),
        ("to 10.96.0.0/12", "STRICT", None),
        ("to 10.96.0.0/12", "WARN", True),
        ("to 10.97.0.0/16 fwmark 1", "STRICT", True),
    ],
)
def test_a_plan_for_hidden_selectors(
    host: Host,
    kernel: FakeKernel,
    selector: str,
    mode: str,
    is_admitted: bool | None,
    is_installed: bool,
) -> None:
    """Our own rules hide no selectors. Nothing is predicted from a rule that may hide some."""
    given = with_policy(config(SHADOWED, cidrs=[SHADOWED, "10.96.0.0/12"], mode=mode))
    if is_installed:
        phases.run(Configure(given, host=host))
    kernel.ip(VPN.format(selector))
    planned = plan(given, host=taken_by_an_old_ip(kernel))
    assert not any(change.action == "removed" for change in planned.changes.rules)
    assert bool(planned.changes) is not is_installed
    assert planned.next_start.is_admitted is is_admitted
    assert not any("apply would fail" in warning for warning in planned.warnings)


# --- waits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "settle", "seconds"), [("STRICT", None, 60), ("STRICT", 7, 7), ("WARN", None, 0)]
)
@pytest.mark.parametrize("task", [Configure, InstallRoutes])
def test_a_kept_interface_is_waited_for(
    host: Host, kernel: FakeKernel, task: Any, mode: str, settle: int | None, seconds: int
) -> None:
    """There is one deadline, and no lock is held."""
    kernel.add_link("ib1")
    clock, held = FakeClock(), set[bool]()
    observer = OnProgress(act=lambda: held.add(is_held(host.layout.lock)))
    overlap = attrs.evolve(POLICY.route_overlap, mode=mode, settle_seconds=settle)
    given = attrs.evolve(POLICY, route_overlap=overlap)
    report = phases.run(
        task(given, host=host), scope=phases.CancelScope(clock=clock), observers=[observer]
    )
    assert clock.monotonic() == pytest.approx(seconds, abs=0.1)
    assert held == ({False} if seconds else set())
    plan = report.plan if task is InstallRoutes else report.routes.plan
    why = "ib1 (it has no address)"
    assert plan.notes == (f"not kept yet: {why}; the watcher or the next run does it",)
    assert our_rules(kernel) == [KEPT, *PAIR]


def test_a_late_address_is_kept(host: Host, kernel: FakeKernel) -> None:
    kernel.add_link("ib1")
    clock = FakeClock()
    clock.call_at(5, lambda: kernel.add_address("ib1", "172.16.0.11/16"))
    report = phases.run(Configure(POLICY, host=host), scope=phases.CancelScope(clock=clock))
    assert 5 <= clock.monotonic() < 6
    assert report.routes.plan.notes == ()
    assert f"2170: from 172.16.0.11 lookup {T + 1}" in our_rules(kernel)


def test_only_one_deadline_counts(host: Host, kernel: FakeKernel) -> None:
    """An interface that gets ready, while another doesn't, makes no run wait longer."""
    for dev in ("ib1", "ib2"):
        kernel.add_link(dev)
    clock = FakeClock()
    clock.call_at(30, lambda: kernel.add_address("ib1", "172.16.0.11/16"))
    phases.run(Configure(POLICY, host=host), scope=phases.CancelScope(clock=clock))
    assert clock.monotonic() == pytest.approx(60, abs=0.1)
    assert f"2170: from 172.16.0.11 lookup {T + 1}" in our_rules(kernel)


# --- rollback -------------------------------------------------------------------------------------


class StartingBackend(ForwardingBackend):
    """A kernel on which the node starts, and runs the new script, just before a run reads routes.

    Args:
        inner: the kernel.
        layout: the layout with the script.
        config: the config from which the new script is rendered.
        fails: whether the run then fails.
    """

    def __init__(
        self, inner: FakeKernel, layout: Layout, config: Config, *, fails: bool = True
    ) -> None:
        super().__init__(inner)
        self.script = layout.script(ROUTES_PART)
        self.before = self.script.read_text()
        self.config = config
        self.fails = fails
        self.host = Host(inner, FakeSystemd(layout), layout)

    def entries(self, wanted: Selection = EVERYTHING) -> Entries:
        if self.script.read_text() == self.before:
            return super().entries(wanted)
        self.before = self.script.read_text()
        plan, _ = plan_now(self.config, self.inner)
        with phases.all_or_nothing() as undo:
            apply_and_verify(plan, self.host, phases.CancelScope(), undo)
        if self.fails:
            raise RouteError("can't read routes: no memory")
        return super().entries(wanted)


@pytest.mark.parametrize(("old", "new"), [(ROUTES, POLICY), (POLICY, ROUTES), (POLICY, WIDER)])
def test_a_failed_run_restores_what_a_start_of_the_node_changed(
    host: Host, kernel: FakeKernel, old: Config, new: Config
) -> None:
    phases.run(Configure(old, host=host))
    before = (our_rules(kernel), side_routes(kernel), ours(kernel))
    backend = StartingBackend(kernel, host.layout, new)
    with pytest.raises(RouteError, match="no memory"):
        phases.run(Configure(new, host=Host(backend, host.units, host.layout)))
    assert backend.before != backend.script.read_text()
    assert (our_rules(kernel), side_routes(kernel), ours(kernel)) == before


@pytest.mark.parametrize(("old", "new"), [(ROUTES, POLICY), (POLICY, ROUTES), (POLICY, WIDER)])
def test_a_run_reports_what_a_start_of_the_node_changed(
    host: Host, kernel: FakeKernel, old: Config, new: Config
) -> None:
    """While a start is held, the gate may run the new script before the run installs its routes."""
    phases.run(Configure(old, host=host))
    planned = plan(new, host=host).changes
    backend = StartingBackend(kernel, host.layout, new, fails=False)
    report = phases.run(Configure(new, host=Host(backend, host.units, host.layout)))
    assert backend.before == backend.script.read_text()
    assert Counter(report.changes.routes) == Counter(planned.routes)
    assert Counter(report.changes.rules) == Counter(planned.rules)
    assert planned.rules
    unchanged = report.routes.plan.unchanged_routes
    assert not {change.what for change in planned.routes}.intersection(unchanged)


# --- trials ---------------------------------------------------------------------------------------


@pytest.fixture
def trial_host(kernel: FakeKernel, layout: Layout) -> Host:
    host = Host(kernel, TrialSystemd(layout, kernel), layout)
    phases.run(Configure(ROUTES, host=host))
    return host


def test_a_trial_ends_with_its_rules(trial_host: Host, kernel: FakeKernel) -> None:
    report = phases.run(TryRoutes(POLICY, 60, host=trial_host))
    assert [change.what for change in report.changes.rules] == [*PAIR, KEPT]
    assert our_rules(kernel) == [KEPT, *PAIR]
    ended = phases.run(EndTrial(host=trial_host))
    assert sorted(str(change.what) for change in ended.changes.rules) == sorted([*PAIR, KEPT])
    assert {change.action for change in ended.changes.rules} == {"removed"}
    assert len(ended.changes.routes) == 1
    assert our_rules(kernel) == side_routes(kernel) == []


def test_a_confirmed_trial_keeps_its_rules(trial_host: Host, kernel: FakeKernel) -> None:
    phases.run(TryRoutes(POLICY, 60, host=trial_host))
    report = phases.run(ConfirmTrial(host=trial_host))
    assert report.changes.rules == ()
    assert len(report.routes.plan.unchanged_rules) == 3
    assert our_rules(kernel) == [KEPT, *PAIR]


def test_a_failed_trial_leaves_no_rule(trial_host: Host, kernel: FakeKernel) -> None:
    shadowed = config(cidrs=["172.16.0.0/16"])
    given = attrs.evolve(with_policy(shadowed), static_routes=POLICY.static_routes)
    with pytest.raises(RouteOverlapError):
        phases.run(TryRoutes(given, 60, host=trial_host))
    assert our_rules(kernel) == side_routes(kernel) == []


# --- commands -------------------------------------------------------------------------------------


def test_apply_and_plan_name_rules(
    host: Host, run: Callable[..., tuple[int, str, str]], write: Callable[[object], Any]
) -> None:
    path = write(POLICY.to_mapping())
    code, out, _ = run("plan", path)
    assert code == 2
    assert f"+ rule {KEPT}\n" in out
    code, out, _ = run("apply", path)
    assert code == 0
    assert f"added     rule {KEPT}\n" in out
    code, out, _ = run("apply", path)
    assert "nothing to change: 2 routes and 3 rules already installed\n" in out
    code, out, _ = run("plan", "-v", path)
    assert (code, f"= rule {KEPT}\n" in out) == (0, True)
    code, out, _ = run("remove")
    assert (code, f"removed   rule {KEPT}\n" in out) == (0, True)


@pytest.mark.parametrize("has_gateway", [False, True])
def test_printed_rules_are_to_be_deleted(
    host: Host,
    kernel: FakeKernel,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
    has_gateway: bool,
) -> None:
    """Of equal rules, the kernel uses those of fix --format ip, which it has got first."""
    if has_gateway:
        kernel.ip("route add default via 172.16.0.254 dev ib0 metric 500")
    path = write(config(cidrs=["172.16.0.0/16"], uplinks=["eth0"]).to_mapping())
    for line in run("fix", path, "--format", "ip")[1].splitlines():
        kernel.ip(line)
    given = config("172.16.0.0/17", cidrs=["172.16.0.0/16"], uplinks=["eth0"])
    path = write(with_policy(given, rules=[]).to_mapping())
    out = run("check", path)[1]
    assert re.search(r"(would fail|can't install .*): can't keep 172\.16\.0\.10 on ib0", out)
    held = "note: with CONFIG installed, the next start that the gate checks is held: can't keep "
    assert (held in out) is not has_gateway
    apply = f"hostrouting apply {path}"
    assert f"&& {apply}" in out
    assert apply not in out.replace(f"&& {apply}", ""), "not before it is deleted"
    assert check(Config.load(path), host=host).fix.would_fail
    with ThreadPoolExecutor() as executor:
        (judged,) = judge([take_snapshot(host.routes)], Config.load(path), executor).groups
    assert judged.would_fail
    cautions = [line.partition(": ")[0] for line in judged.cautions]
    assert cautions == ([] if has_gateway else ["hostrouting apply would fail"])
    code, _, said = run("apply", path)
    assert (code, "can't keep 172.16.0.10 on ib0" in said) == (1, True)
    assert said.count("ip -6 route flush table all proto 216") == 1
    assert run("fix", "--in-place", path)[0] == 0
    delete_printed(kernel, said)
    assert run("apply", path)[0] == 0


def test_a_check_tells_of_printed_rules_that_the_next_boot_lacks(
    host: Host,
    kernel: FakeKernel,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
    recorded: Any,
) -> None:
    """After the commands of fix --format ip, a config without them passes until the next boot."""
    path = write(config(cidrs=["172.16.0.0/16"], uplinks=["eth0"]).to_mapping())
    told = f"the next boot has none of what hostrouting fix --format ip printed ({KEPT}, 172"
    assert told not in run("check", path)[1]
    commands = run("fix", path, "--format", "ip")[1]
    assert commands.startswith("# To make this last, write the same fix into CONFIG")
    for line in commands.splitlines():
        kernel.ip(line)
    commands_of = (["check", path], ["check", "--cidr", "172.16.0.0/16"], ["fix", path])
    for words in (*commands_of, ["plan", path], ["apply", path], ["doctor", path]):
        code, out, err = run(*words)
        assert (code == 0 or words[0] == "plan", (out + err).count(told)) == (True, 1), words
    assert "not-lasting" in {each.kind for each in examine(host=host).findings}
    code, line, _ = run("check", path, "--output", "nagios")
    assert (code, told in line) == (1, True)
    # The hint works: apply says what to delete, and the next boot has what it installs.
    assert run("fix", path, "--in-place", "--snapshot", recorded)[0] == 0
    delete_printed(kernel, run("apply", path)[2])
    assert run("apply", path)[0] == 0
    assert told not in run("check", path)[1]


def test_a_plan_that_fails_for_several_interfaces_has_a_line_for_each(
    kernel: FakeKernel,
    host: Host,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
) -> None:
    for line in TWO.splitlines():
        kernel.ip(line)
    path = write(config(cidrs=["172.16.0.0/16"], uplinks=["eth0"]).to_mapping())
    assert run("fix", path, "--in-place")[0] == 0
    for number in range(2):
        kernel.ip(f"route add 172.16.0.0/16 dev eth0 table 5{number}")
        kernel.ip(f"rule add preference 100{number} from 172.16.0.1{number} table 5{number}")
    code, out, err = run("plan", path)
    assert code == 2
    for start in ("can't keep 172.16.0.10 on ib0", "can't keep 172.16.0.11 on ib1"):
        assert (out + err).count(start) == 1
        assert [line for line in err.splitlines() if line.startswith(f"hostrouting: {start}")]
    assert out.endswith("held back: the static routes can't be installed\n")
    planned = plan(Config.load(path), host=host).next_start
    assert planned.reason == "the static routes can't be installed"
    assert [line.split(" on ")[0] for line in planned.refusals[:2]] == [
        *("can't keep 172.16.0.10", "can't keep 172.16.0.11"),
    ]
    assert planned.to_json()["reason"].splitlines() == [f"{planned.reason}:", *planned.refusals]


def test_rules_of_networkd_last(
    host: Host,
    kernel: FakeKernel,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
) -> None:
    path = write(config(cidrs=["172.16.0.0/16"], uplinks=["eth0"]).to_mapping())
    for line in run("fix", path, "--format", "ip")[1].splitlines():
        kernel.ip(line.replace("proto 216", "proto static"))
    code, out, _ = run("check", path)
    assert (code, "next boot" in out) == (0, False)


TWO = "link add ib1\naddress add 172.16.0.11/16 dev ib1"
BY_ANOTHER = f"""\
{TWO}
rule add pref 2000 from 172.16.0.10 lookup 100
rule add pref 2001 from 172.16.0.11 lookup 101
route add 172.16.0.0/16 dev ib0 table 100 src 172.16.0.10
route add 172.16.0.0/16 dev ib1 table 101 src 172.16.0.11"""
ALREADY = {
    "one table each": "",
    "a part as well": "route add 172.16.7.0/24 dev ib0 table 100",
    "a mark first": "rule add pref 1999 from 172.16.0.10 fwmark 1 lookup 100",
    "a default route beneath": "route add default via 10.1.0.1 dev eth0 table 100",
}
OTHERWISE = {
    "a part through the uplink": "route add 172.16.7.0/24 via 10.1.0.1 dev eth0 table 100",
    "a part is dropped": "route add unreachable 172.16.7.0/24 table 100",
    "a part through a router": "route add 172.16.7.0/24 via 172.16.0.1 dev ib0 table 100",
    "a part only": "route del 172.16.0.0/16 dev ib0 table 100\n"
    "route add 172.16.0.0/17 dev ib0 table 100",
    "one protocol only": "rule del pref 2000 from 172.16.0.10 lookup 100\n"
    "rule add pref 2000 from 172.16.0.10 ipproto udp lookup 100",
    "a VPN before it": "link add wg0\naddress add 10.8.0.2/24 dev wg0\n"
    "route add 172.16.9.0/24 dev wg0 table 77\nrule add pref 1500 from all lookup 77",
}


@pytest.mark.parametrize("more", (ALREADY | OTHERWISE).values(), ids=ALREADY | OTHERWISE)
def test_what_another_programs_rules_keep_already_is_to_be_left_out(
    host: Host, kernel: FakeKernel, more: str
) -> None:
    """Only if they keep all packets that our rules would keep. The advice leads to success."""
    kernel.ip(BY_ANOTHER)
    kernel.ip(more)
    before = read_routes(kernel), kernel.facts().rules
    halves = ("172.16.0.0/17", "172.16.128.0/17")
    given = config(*halves, cidrs=["172.16.0.0/16"], keep=["ib*"], mode="WARN")
    with pytest.raises(RouteError, match="can't keep 172.16.0.10 on ib0") as caught:
        phases.run(Configure(given, host=host))
    assert (read_routes(kernel), kernel.facts().rules) == before
    told = "other rules keep ib0, ib1 already: no entry of"
    assert (told in caught.value.hint) is (more in ALREADY.values())
    if more not in ALREADY.values():
        return
    assert "rule del" not in caught.value.hint
    (warning,) = (line for line in plan(given, host=host).warnings if "would fail" in line)
    assert told in warning
    phases.run(Configure(config(*halves, cidrs=["172.16.0.0/16"], mode="WARN"), host=host))
    for dev, source in (("ib0", "172.16.0.10"), ("ib1", "172.16.0.11")):
        neighbours = [IPv4Address(f"172.16.{part}.9") for part in (0, 7, 9, 200)]
        found = kernel.lookup(neighbours, source=IPv4Address(source))
        assert [each.route and each.route.devs for each in found] == [(dev,)] * len(neighbours)


def test_notes_are_printed(
    host: Host,
    kernel: FakeKernel,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
) -> None:
    given = with_policy(config(SHADOWED, mode="WARN"), keep=["ib*", "eth*"])
    note = "hostrouting: eth0 isn't kept: it is an uplink\n"
    for words in (["plan"], ["apply", "--routes-only"], ["apply"]):
        _, _, said = run(*words, write(given.to_mapping()))
        assert note in said, words


@pytest.mark.parametrize("listed", [{}, {"routes": [{"destination": "203.0.113.0/24"}]}])
def test_what_eth0s_neighbours_lose_by_a_listed_keep_is_named(
    host: Host,
    kernel: FakeKernel,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
    listed: dict[str, Any],
) -> None:
    kernel.add_address("eth0", "172.16.9.4/24")
    static = {"enabled": True, "keep": ["ib0"]} | listed
    path = write({"hostRouting": {"staticRoutes": static}})
    lost = (
        "packets from the addresses of ib0 no longer go to 172.16.9.0/24 through eth0, but through "
        "ib0"
    )
    for words in (["plan"], ["apply", "--routes-only"]):
        code, out, err = run(*words, path)
        assert code in (0, 2), err
        assert lost in out + err, words


def test_a_plan_tells_of_the_wait(
    host: Host,
    kernel: FakeKernel,
    run: Callable[..., tuple[int, str, str]],
    write: Callable[[object], Any],
) -> None:
    (address,) = (each for each in kernel.facts().addresses if each.dev == "ib0")
    kernel.del_address("ib0", f"{address.local}/{address.prefix_length}")
    _, out, said = run("plan", write(POLICY.to_mapping()))
    assert "would wait up to 60 s for an address on ib0\n" in out
    assert "not kept yet: ib0 (it has no address)" in said
    assert plan(POLICY, host=host).pending == ("ib0",)
    in_warn = attrs.evolve(POLICY.route_overlap, mode="WARN")
    assert plan(attrs.evolve(POLICY, route_overlap=in_warn), host=host).pending == ()
    kernel.set_link("ib0", up=False)
    _, out, said = run("plan", write(POLICY.to_mapping()))
    assert "would wait" not in out
    assert plan(POLICY, host=host).pending == ()
    assert "not kept yet: ib0 (it is down)" in said


def test_remove_leaves_nothing(host: Host, kernel: FakeKernel) -> None:
    before = read_routes(kernel), kernel.facts().rules
    phases.run(Configure(POLICY, host=host))
    phases.run(RemoveHostRouting(host=host))
    assert (read_routes(kernel), kernel.facts().rules) == before
