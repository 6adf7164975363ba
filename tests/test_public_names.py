"""Tests that a program using only public names can do everything that the command line can."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import attrs
import pytest
from file_trees import read_trees, write_file
from node import shadowed_kernel
from wanted import ROUTE, SHADOWED, config

import hostrouting
import hostrouting.tasks
import phases
from hostrouting import (
    CheckRouteOverlap,
    Config,
    ConfigError,
    Configure,
    ConfigureStaticRoutes,
    ConfigureWatch,
    FileError,
    Host,
    Layout,
    OverlapReport,
    RemoveHostRouting,
    RouteError,
    Snapshot,
    Verdict,
    azure,
    check,
    diff,
    examine,
    explain,
    judge,
    plan,
    snapshot,
)
from hostrouting.azure import (
    ConfigureLoadBalancerProbe,
    RemoveStaleAzureVnet,
    plan_probe,
    plan_stale,
)
from hostrouting.backend import (
    DEFAULT_DESTINATION,
    Address,
    Facts,
    Family,
    ForwardingBackend,
    Link,
    NetlinkBackend,
    NetlinkBackend6,
    NextHop,
    Route,
    RouteBackend,
    Rule,
    Systemctl,
    Write,
    read_routes,
)
from hostrouting.model.routes import Route6
from hostrouting.report import CHECKS, UnknownReason
from hostrouting.tasks import InstallRoutes, RestoreOnFailure, TryRoutes
from hostrouting.testing import FakeKernel, FakeSystemd
from hostrouting.testing.conformance import NamespaceKernel
from phases.testing import FakeClock

Document = dict[str, Any]

CONFIG = config(ROUTE, cidrs=[SHADOWED, "10.96.0.0/12"])
ADDRESS = "172.16.1.9"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a node like an H200, where ib0's connected route shadows cluster addresses."""
    layout = Layout(tmp_path / "root")
    layout.units.mkdir(parents=True)
    (layout.units / "systemd-nspawn@.service").write_text("[Service]\nExecStart=/bin/true\n")
    return Host(routes=shadowed_kernel(), units=FakeSystemd(layout), layout=layout)


@pytest.fixture
def shell(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> Callable[..., Document]:
    """Return a function that runs a command with a config and returns the document, without its
    time.
    """
    path = write_file(tmp_path / "config.json", json.dumps(CONFIG.to_mapping()))

    def call(*words: str) -> Document:
        _, out, _ = run(*(path if word == "CONFIG" else word for word in words), "--output", "json")
        return {key: value for key, value in json.loads(out).items() if key != "time"}

    return call


def timeless(report: OverlapReport) -> Document:
    return {key: value for key, value in report.to_json().items() if key != "time"}


@pytest.mark.parametrize("is_installed", [False, True])
def test_functions_return_what_commands_print(
    host: Host, shell: Callable[..., Document], *, is_installed: bool
) -> None:
    if is_installed:
        phases.run(Configure(CONFIG, host=host))
    assert shell("check", "CONFIG") == timeless(check(CONFIG, host=host))
    assert shell("plan", "CONFIG") == plan(CONFIG, host=host).to_json()
    name = {"host": os.uname().nodename}
    assert (
        shell("explain", ADDRESS, "CONFIG") == explain(ADDRESS, CONFIG, host=host).to_json() | name
    )
    without_config = explain(IPv4Address(ADDRESS), host=host).to_json()
    assert without_config["expected"] == []


def test_functions_change_nothing(host: Host, tmp_path: Path) -> None:
    """No marker, lock or route is added."""
    before = read_trees(tmp_path), read_routes(host.routes), host.routes.facts().rules
    check(CONFIG, host=host)
    plan(CONFIG, host=host)
    explain(ADDRESS, CONFIG, host=host)
    judge([snapshot(host=host)], CONFIG)
    examine(CONFIG, host=host, checks=CHECKS)
    assert (read_trees(tmp_path), read_routes(host.routes), host.routes.facts().rules) == before


def test_a_check_waits_until_its_scope_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    scope = phases.CancelScope(clock=clock)
    bare = Host(routes=FakeKernel(), units=FakeSystemd(), layout=Layout(tmp_path))
    patient = config(waitSeconds=20)
    assert check(patient, host=bare, scope=scope).verdict is Verdict.UNKNOWN
    assert clock.monotonic() >= 20
    scope.cancel("SIGTERM")
    with pytest.raises(phases.Cancelled):
        check(patient, host=bare, scope=scope)


@pytest.fixture
def recorded(host: Host, tmp_path: Path) -> Host:
    """Return a file with a snapshot of the unhealthy host."""
    path = tmp_path / "node-7.json"
    snapshot(host=host).save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"host": None}))
    return Host.recorded(Snapshot.load(path))


def test_a_saved_snapshot_loads_unchanged(host: Host, tmp_path: Path) -> None:
    taken = snapshot(host=host)
    taken.save(tmp_path / "node.json")
    assert Snapshot.load(tmp_path / "node.json") == taken
    recorded = Host.recorded(taken)
    assert snapshot(host=recorded) is taken
    for of_this_machine in ("layout", "units"):
        with pytest.raises(FileError):
            getattr(recorded, of_this_machine)
    with pytest.raises(FileError, match=r"can't write the snapshot .*node\.json: No such file"):
        taken.save(tmp_path / "missing/node.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(FileError):
        taken.save(tmp_path / "folder.json")
    assert {path.name for path in tmp_path.glob("*.json*")} == {"node.json", "folder.json"}


def test_a_snapshot_is_checked(
    recorded: Host, shell: Callable[..., Document], tmp_path: Path
) -> None:
    file = str(tmp_path / "node-7.json")
    report = check(CONFIG, host=recorded)
    assert (report.host, report.verdict) == ("node-7", Verdict.OVERLAP)
    assert shell("check", "CONFIG", "--snapshot", file) == timeless(report)
    wanted = plan(CONFIG, host=recorded)
    assert wanted
    assert wanted.boot is None
    assert shell("plan", "CONFIG", "--snapshot", file) == wanted.to_json()
    way = explain(ADDRESS, CONFIG, host=recorded)
    assert shell("explain", ADDRESS, "CONFIG", "--snapshot", file) == way.to_json() | {
        "host": "node-7"
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda host: Configure(CONFIG, host=host),
        lambda host: RemoveHostRouting(host=host),
        lambda host: azure.RemoveLoadBalancerProbe(host=host),
        lambda host: azure.RemoveStaleAzureVnet(
            azure.HostNetworking(stale_azure_vnet={"cidrs": ["10.241.0.0/16"]}), host=host
        ),
        lambda host: phases.task("doctor")(lambda _: examine(CONFIG, host=host)),
    ],
)
def test_no_task_runs_on_a_snapshot(
    recorded: Host, make: Callable[[Host], phases.Task[Any]]
) -> None:
    with pytest.raises(FileError, match="the snapshot of node-7 holds no"):
        phases.run(make(recorded))


TASKS: tuple[Any, ...] = (
    Configure,
    ConfigureStaticRoutes,
    ConfigureWatch,
    CheckRouteOverlap,
    InstallRoutes,
)


def test_wrong_arguments_are_refused_with_a_hint(host: Host) -> None:
    no_config = r"takes a Config, not .*Config\.load.*Config\.from_mapping"
    document: Any = CONFIG.to_mapping()
    with pytest.raises(TypeError, match=no_config):
        judge([], document)
    wrong: Any
    for function in (check, plan, examine, *TASKS):
        for wrong in (document, "/etc/aks-flex-node/config.json"):
            with pytest.raises(TypeError, match=no_config):
                function(wrong, host=host)
        for wrong in ("/mnt/image", object(), Host):
            with pytest.raises(TypeError, match=r"takes host=Host\("):
                function(CONFIG, host=wrong)
    no_scope = cast("phases.CancelScope", 5)
    taken, calls = snapshot(host=host), (check, plan, examine)
    for call in (
        *(partial(function, CONFIG, host=host) for function in calls),
        partial(explain, "10.1.0.9", host=host),
        partial(snapshot, host=host),
        partial(diff, taken, host=host),
        partial(judge, [taken], CONFIG),
    ):
        with pytest.raises(TypeError, match=r"expected scope=CancelScope\("):
            call(scope=no_scope)
    with pytest.raises(TypeError, match="takes host="):
        RemoveHostRouting(host=document)
    with pytest.raises(ConfigError, match="address: 'fe80::1'"):
        explain("fe80::1", host=host)


class Abstract(RouteBackend):
    """A backend whose author has implemented only some methods of the port."""

    family = Family.IPV4

    def facts(self) -> Facts:
        return Facts()


class Unrelated:
    facts = entries = None


WRONG_HOSTS: dict[str, tuple[dict[str, Any], str]] = {
    "an incomplete subclass": (
        {"routes": Abstract()},  # type: ignore[abstract]
        r"takes a RouteBackend; Abstract lacks changes, entries, lookup, sources, write,",
    ),
    "an incomplete class": (
        {"routes6": Unrelated()},
        r"Host\(routes6=…\) takes a RouteBackend; Unrelated lacks changes, .*family, lookup",
    ),
    "a class": ({"routes": FakeKernel}, "not the class FakeKernel: call it"),
    "no backend": ({"routes": "eth0"}, "takes a RouteBackend, not 'eth0'"),
    "a backend for IPv6": ({"routes": NetlinkBackend6()}, "IPv4, not for IPv6: NetlinkBackend6"),
    "no units": ({"units": FakeKernel()}, r"Host\(units=…\) takes a UnitManager, not <FakeK"),
    "no layout": ({"layout": "/mnt"}, r"takes a Layout, such as Layout\('/mnt'\)"),
}


@pytest.mark.parametrize(("given", "message"), WRONG_HOSTS.values(), ids=WRONG_HOSTS)
def test_a_host_refuses_other_types(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Host(**given)


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "a kernel in memory": (
        {"routes": FakeKernel()},
        r"units: must be .* FakeKernel: FakeSystemd\(\)\nlayout: must be .* Layout\(FOLDER\)",
    ),
    "a wrapped kernel in memory": (
        {"routes": ForwardingBackend(FakeKernel()), "units": FakeSystemd()},
        "^layout: must be given with a FakeKernel",
    ),
    "a kernel in a namespace": (
        {"routes": NamespaceKernel(), "units": FakeSystemd()},
        "^layout: must be given with a NamespaceKernel",
    ),
    "no systemd": (
        {"units": FakeSystemd(), "layout": Layout()},
        "^routes: must be given with a FakeSystemd",
    ),
    "the real files": (
        {"routes": FakeKernel(), "units": FakeSystemd(), "layout": Layout()},
        "^layout: is this machine's, but routes is a FakeKernel",
    ),
    "the real systemd": (
        {"routes": FakeKernel(), "units": Systemctl(), "layout": Layout("/nonexistent")},
        "^units: is this machine's, but routes is a FakeKernel",
    ),
    "only a layout": (
        {"layout": Layout("/nonexistent")},
        "^routes: must be given with a layout below /nonexistent.*\nunits: must be given",
    ),
}


@pytest.mark.parametrize(("given", "message"), PARTS.values(), ids=PARTS)
def test_no_part_of_a_tests_host_is_the_machine(given: dict[str, Any], message: str) -> None:
    """Otherwise a test would install the gate on the machine that it runs on."""
    with pytest.raises(ConfigError, match=message):
        Host(**given)


@pytest.mark.parametrize("given", [{}, {"routes": ForwardingBackend(NetlinkBackend())}])
def test_a_programs_own_backend_may_be_the_machines(given: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="about to use this machine's files"):  # the guard
        Host(**given)


NETWORK = IPv4Network("10.0.0.0/8")
IN_MEMORY = Host(FakeKernel(), FakeSystemd(), Layout("/nonexistent"))
WRONG_VALUES: dict[str, tuple[Callable[[Any], object], object, str]] = {
    "a path to judge": (lambda it: judge(it, CONFIG), "node.json", "takes a list of snapshots or"),
    "a Path to judge": (lambda it: judge(it, CONFIG), Path("a.json"), "takes a list of snapshots"),
    "a snapshot to judge": (
        lambda it: judge(it, CONFIG),
        Snapshot((), (), (), ()),
        "takes a list of snapshots or paths, not Snapshot",
    ),
    "a document to judge": (lambda it: judge(it, CONFIG), {}, "takes a list of snapshots"),
    "a number to judge": (lambda it: judge(it, CONFIG), 5, "takes a list of snapshots or paths"),
    "paths to compare": (lambda it: diff(it, it), "a.json", "diff takes a Snapshot, not 'a.json'"),
    "a path of a snapshot": (Host.recorded, "a.json", r"takes a Snapshot, .*Snapshot\.load"),
    "a check's name": (lambda it: examine(checks=it), ["gate"], "takes checks .* not 'gate'"),
    "a root for units": (FakeSystemd, "/srv", r"takes a Layout, such as Layout\('/srv'\)"),
    "running units without a layout": (
        lambda it: FakeSystemd(running=it),
        ["kubelet.service"],
        r"layout .* FakeSystemd\(Layout\(FOLDER\), running=\['kubelet.service'\]\)",
    ),
    "one running unit": (
        lambda it: FakeSystemd(Layout("/srv"), running=it),
        "kubelet.service",
        "takes a list of units, not 'kubelet.service'",
    ),
    "a running unit's bytes": (
        lambda it: FakeSystemd(Layout("/srv"), running=it),
        [b"kubelet.service"],
        r"running=…\) takes a list of units, not \[b'kubelet.service'\]",
    ),
    "the number of running units": (
        lambda it: FakeSystemd(Layout("/srv"), running=it),
        5,
        "takes a list of units, not 5",
    ),
    "no task to restore after": (
        lambda it: RestoreOnFailure(it, host=IN_MEMORY),
        5,
        r"expected a task, which has a name and do\(scope\), not 5",
    ),
    "a size's words": (
        lambda it: judge([], CONFIG, max_mib=it),
        "16",
        r"judge\(max_mib=…\) takes a number of MiB, at least 1, not '16'",
    ),
    "a time of earlier snapshots": (
        lambda it: judge([], CONFIG, since=it),
        5,
        r"judge\(since=…\) takes a path, not 5",
    ),
    "bytes to judge": (lambda it: judge(it, CONFIG), b"a.json", "takes a list of snapshots"),
    "a root's number": (Layout, 5, r"Layout\(root=…\) takes a path, not 5"),
    "a root's bytes": (Layout, b"/srv", r"Layout\(root=…\) takes a path, not b'/srv'"),
    "an image's number": (Host.image, None, "takes a path, not null"),
    "units of a number": (Systemctl, 5, r"Systemctl\(root=…\) takes a path, not 5"),
    "a file's number": (Snapshot((), (), (), ()).save, 5, r"save\(path=…\) takes a path, not 5"),
    "a kernel's number": (FakeKernel, 5.1, "a release of Linux, such as '5.10', not 5.1"),
    "no checks": (lambda it: examine(checks=it), 5, "takes checks such as CHECKS, not 5"),
    "a config's path": (
        lambda it: examine(config_name=it, host=IN_MEMORY),
        Path("a.json"),
        r"examine\(config_name=…\) takes a str, not PosixPath",
    ),
    "a problem's words": (ConfigError, "no", "takes pairs of a path and a message, not 'no'"),
    "a host's name to compare": (
        lambda it: diff(Snapshot((), (), (), ()), Snapshot((), (), (), ()), host=it),
        "node-7",
        "a task takes host=Host",
    ),
    "a timeout to compare in": (
        lambda it: diff(
            Snapshot((), (), (), ()), Snapshot((), (), (), ()), host=IN_MEMORY, scope=it
        ),
        5,
        r"expected scope=CancelScope\(…\), not 5",
    ),
    "no backend to wrap": (ForwardingBackend, 5, "takes a RouteBackend, not 5"),
    "a destination's words": (Route, "10/8", "expected .* or IPv6Network as Route.destination"),
    "words of IPv6": (Route6, "fd00::/8", "expected .* as Route6.destination, not 'fd00::/8'"),
    "one hop": (lambda it: Route(NETWORK, it), NextHop("eth0"), "expected tuple as Route.hops"),
    "a list of hops": (lambda it: Route(NETWORK, it), [NextHop("eth0")], "expected tuple as Route"),
    "a gateway's words": (
        lambda it: NextHop("eth0", it),
        "10.1.0.1",
        "expected IPv4Address or IPv6Address or None as NextHop.gateway, not '10.1.0.1'",
    ),
    "a rule's number in words": (Rule, "5", "expected int as Rule.preference, not '5'"),
    "a rule's table": (lambda it: Rule(5, table=it), "main", "expected int as Rule.table"),
    "a link's index": (lambda it: Link(it, "eth0"), "2", "expected int as Link.index, not '2'"),
    "a local address": (lambda it: Address("eth0", it, 24), "10.1.0.4", "as Address.local, not"),
    "a core config of a probe": (
        lambda it: ConfigureLoadBalancerProbe(it, host=IN_MEMORY),
        CONFIG,
        r"takes a HostNetworking, not Config.*make one with HostNetworking\.load",
    ),
    "a core config of a bridge": (
        lambda it: RemoveStaleAzureVnet(it, host=IN_MEMORY),
        CONFIG,
        "takes a HostNetworking",
    ),
    "a core config to plan probes": (
        lambda it: plan_probe(it, host=IN_MEMORY),
        CONFIG,
        "takes a HostNetworking",
    ),
    "a core config to plan a clean-up": (plan_stale, CONFIG, "takes a HostNetworking, not Config"),
    "a path of a document": (
        lambda it: check(CONFIG, document=it, host=IN_MEMORY),
        "/etc/aks-flex-node/config.json",
        "^check takes a mapping as document, not '/etc/aks",
    ),
    "no earlier snapshot": (
        lambda it: diff(it, None, CONFIG, host=IN_MEMORY),
        None,
        "^diff takes a Snapshot, not null",
    ),
    "a client as executor": (
        lambda it: judge([], CONFIG, it),
        object(),
        r"^judge takes a concurrent\.futures\.Executor as executor, not <object",
    ),
    "a trial's words": (
        lambda it: TryRoutes(CONFIG, it, host=IN_MEMORY),
        "60",
        "^expected int as TryRoutes.seconds, not '60'$",
    ),
    "a timeout's words": (lambda it: phases.CancelScope(timeout=it), "5", "timeout.* not '5'"),
}


@pytest.mark.parametrize(("call", "value", "message"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_function_says_what_it_takes(
    call: Callable[[Any], object], value: object, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(value)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [(CONFIG, UnknownReason.NO_KERNEL), (Config(), UnknownReason.NOTHING_EXPECTED)],
    ids=["a CIDR", "nothing"],
)
def test_a_check_of_an_image_is_unknown(
    wanted: Config, kind: UnknownReason, tmp_path: Path
) -> None:
    """The report of a check is the same as in that of ``Configure``."""
    write_file(tmp_path / "usr/lib/systemd/system/systemd-nspawn@.service")
    host = Host.image(tmp_path)
    report = check(wanted, host=host, document={"node": {"kubelet": {"nodeIP": "10.1.0.9"}}})
    assert (report.verdict, report.reason_kind) == (Verdict.UNKNOWN, kind)
    assert report.host == str(tmp_path)
    installed = phases.run(Configure(wanted, host=host)).overlap
    assert attrs.evolve(installed, time=report.time, changes=report.changes) == report


# --- the kernel in memory has no IPv6 -------------------------------------------------------------


@pytest.mark.parametrize(
    ("routes", "routes6"),
    [
        (FakeKernel(), NetlinkBackend6()),
        (ForwardingBackend(FakeKernel()), ForwardingBackend(NetlinkBackend6())),
    ],
)
def test_a_host_refuses_the_real_kernel_beside_one_in_memory(
    routes: RouteBackend, routes6: RouteBackend, tmp_path: Path
) -> None:
    """A test would change the real table."""
    with pytest.raises(ConfigError, match=r"routes6: is the kernel's, but routes is a FakeKernel"):
        Host(routes, FakeSystemd(), Layout(tmp_path), routes6)


@pytest.mark.parametrize(
    ("routes", "hint"),
    [
        (FakeKernel(), "FakeKernel is IPv4-only: "),
        (ForwardingBackend(FakeKernel()), "FakeKernel is IPv4-only: "),
        (ForwardingBackend(NetlinkBackend()), r"give Host\(routes6=NetlinkBackend6\(\)\)$"),
        (Snapshot((), (), (), ()), "give .* IPv6 backend of the same kernel$"),
    ],
)
def test_the_hint_at_ipv6_leads_to_the_same_kernel(
    routes: RouteBackend | Snapshot, hint: str, tmp_path: Path
) -> None:
    if isinstance(routes, Snapshot):
        routes = Host.recorded(routes).routes
    host = Host(routes, FakeSystemd(), Layout(tmp_path))
    wanted = config({"destination": "fd00::/64", "gateway": "fe80::1", "dev": "eth0"}, cidrs=())
    for fails in (
        lambda: phases.run(Configure(wanted, host=host)),
        lambda: plan(wanted, host=host),
        lambda: explain("fd00::1", host=host),
    ):
        with pytest.raises(RouteError, match="can't ask for IPv6 routes") as caught:
            fails()
        assert re.match(hint, caught.value.hint)


# --- backends -------------------------------------------------------------------------------------


DEFAULT = Route(DEFAULT_DESTINATION, (NextHop("eth0", IPv4Address("10.1.0.1")),))
WRONG_CALLS: dict[str, tuple[Callable[[RouteBackend], object], str]] = {
    "words": (
        lambda backend: backend.write(Write.ADD, ["default via 10.1.0.1"]),  # type: ignore[list-item]
        "expected a Route, not 'default via",
    ),
    "one route": (
        lambda backend: backend.write(Write.ADD, DEFAULT),  # type: ignore[arg-type]
        "expected a list of routes, not Route",
    ),
    "a word for the change": (
        lambda backend: backend.write("delete", [DEFAULT]),  # type: ignore[arg-type]
        "expected Write.ADD, .* not 'delete'",
    ),
    "a text as the destination": (
        lambda backend: backend.write(Write.ADD, [Route("10.0.0.0/8")]),  # type: ignore[arg-type]
        "expected IPv4Network or IPv6Network as Route.destination, not '10.0.0.0/8'",
    ),
    "an IPv6 route": (
        lambda backend: backend.write(Write.ADD, [Route6(IPv6Network("fd00::/8"))]),
        "expected a Route, not Route6",
    ),
    "a rule's words": (
        lambda backend: backend.write_rules(Write.ADD, ["from all lookup 100"]),  # type: ignore[list-item]
        "expected a Rule, not 'from all",
    ),
    "an address's words": (
        lambda backend: backend.lookup(["10.1.0.1"]),  # type: ignore[list-item]
        "expected an IPv4Address, not '10.1.0.1'",
    ),
    "one address": (
        lambda backend: backend.lookup(IPv4Address("10.1.0.1")),  # type: ignore[arg-type]
        "expected a list of addresses, not IPv4Address",
    ),
}


@pytest.mark.parametrize("make", [FakeKernel, NetlinkBackend])
@pytest.mark.parametrize(("call", "message"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_a_backend_refuses_other_types(
    make: Callable[[], RouteBackend], call: Callable[[RouteBackend], object], message: str
) -> None:
    """A backend of the kernel refuses them before it asks the kernel."""
    with pytest.raises(TypeError, match=message):
        call(make())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hops": ("eth0",)}, "expected a NextHop, not 'eth0'"),
        ({"metric": "5"}, "expected int as Route.metric, not '5'"),
        ({"table": "main"}, "expected int as Route.table, not 'main'"),
        ({"source": "10.1.0.4"}, "expected .* as Route.source, not '10.1.0.4'"),
    ],
)
def test_the_kernel_in_memory_refuses_other_types(fields: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        FakeKernel().write(Write.ADD, [attrs.evolve(DEFAULT, **fields)])


def test_a_hosts_repr_is_what_it_was_made_of(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.add_link("eth0")
    layout = Layout(tmp_path)
    host = Host(kernel, FakeSystemd(), layout)
    shown = f"Host(routes=<FakeKernel with lo, eth0>, units=<FakeSystemd>, layout={layout!r})"
    assert repr(host) == shown
    linux = Host(NetlinkBackend(), FakeSystemd(), layout, NetlinkBackend6())
    assert "(routes=NetlinkBackend()," in repr(linux)
    assert ", routes6=NetlinkBackend6())" in repr(linux)
    recorded = Host.recorded(attrs.evolve(snapshot(host=host), host="node-7"))
    assert repr(recorded) == "Host.recorded(<the snapshot of node-7>)"
    write_file(tmp_path / "usr/lib/systemd/system/dbus.service")
    assert repr(Host.image(tmp_path)).startswith(f"Host.image('{tmp_path}')")


@pytest.mark.parametrize("module", [hostrouting, hostrouting.tasks])
def test_a_package_lists_its_public_names_only(module: ModuleType) -> None:
    names = {name for name in dir(module) if not name.startswith("_")}
    assert names == set(module.__all__)


def test_a_comparison_ends_with_its_scope() -> None:
    """Two snapshots are compared without a look at the host, but not after a cancellation."""
    scope = phases.CancelScope()
    scope.cancel("SIGTERM")
    some = Snapshot((), (), (), ())
    with pytest.raises(phases.Cancelled):
        diff(some, some, host=IN_MEMORY, scope=scope)


def test_a_file_may_have_a_size() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        judge([], CONFIG, max_mib=0)


def test_a_comparison_of_two_hosts_names_both() -> None:
    a, b = (Snapshot((), (), (), (), host=name) for name in ("node-7", "node-8"))
    report = diff(a, b)
    assert (report.host_before, report.host) == ("node-7", "node-8")
    assert (report.to_json()["hostBefore"], report.to_json()["host"]) == ("node-7", "node-8")
