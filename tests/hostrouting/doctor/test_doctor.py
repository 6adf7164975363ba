"""Tests that the doctor finds each injected fault, prints a hint, changes nothing, and passes a
healthy host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import attrs
import pytest
from acting import ActingSystemd, refusing
from dual_stack import DEFAULT
from dual_stack import host as snapshot_of
from file_trees import read_trees, write_file, write_link
from node import shadowed_kernel
from wanted import MACHINE, SHADOWED, config

import phases
from hostrouting import Config, Configure, Host, Layout, RemoveHostRouting, cli, plan
from hostrouting.boot.locks import locked
from hostrouting.boot.systemctl import NoSystemdError
from hostrouting.boot.trial_timer import TRIAL_HINT, times_of
from hostrouting.cli.pages import doctor_page
from hostrouting.cli.report import page_text
from hostrouting.doctor._consumer import find_cycle
from hostrouting.doctor.check_types import DoctorFinding, Severity
from hostrouting.doctor.examine import CHECKS, DoctorReport, examine
from hostrouting.host_files.advertisements import ignored_advertisements
from hostrouting.kernel.model import model_of
from hostrouting.kernel.port import Write, read_routes
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.family import Family
from hostrouting.model.links import Link
from hostrouting.model.parsing import parse_any_cidr
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Route, Table
from hostrouting.model.rules import Rule
from hostrouting.report import UnknownReason
from hostrouting.tasks.trial import TryRoutes
from hostrouting.testing import FakeKernel, FakeSystemd
from phases import CancelScope
from phases.testing import FakeClock

TEMPLATE = "systemd-nspawn@.service"
KEEP = ["ib0"]
UNITS, CONFIG_DIR, STATE_DIR = "etc/systemd/system", "etc/aks-flex-node", "etc/hostrouting"
ROUTES, CHECK = f"{CONFIG_DIR}/static-routes.sh", f"{CONFIG_DIR}/check-route-overlap.sh"


@attrs.frozen
class Node:
    """A host for fault injection."""

    kernel: FakeKernel
    units: FakeSystemd
    layout: Layout

    @property
    def host(self) -> Host:
        return Host(routes=self.kernel, units=self.units, layout=self.layout)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        return write_file(self.layout.of(path), text, mode)

    def link(self, path: str, target: str) -> None:
        write_link(self.layout.of(path), target)

    def read(self, path: str) -> str:
        return self.layout.of(path).read_text()

    def remove(self, path: str) -> None:
        self.layout.of(path).unlink()

    def reload(self) -> None:
        self.units.reload()

    def divert(self, *destinations: str, table: int = Table.MAIN) -> None:
        routes = [
            Route(parse_any_cidr(to), (NextHop("ib0"),), protocol=4, table=table)
            for to in destinations
        ]
        assert not self.kernel.write(Write.ADD, routes)

    def delete_ours(self) -> None:
        assert not self.kernel.write(
            Write.DELETE, [route for route in read_routes(self.kernel) if route.is_ours]
        )

    def manage(self, service: str, folder: str, text: str) -> None:
        """Start a network manager and mark every interface as managed by it."""
        self.units.restart(service)
        for link in self.kernel.facts().links:
            self.write(f"{folder}/{link.index}", text)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return a host on which everything is installed. Each test gets its own copy."""
    kernel = shadowed_kernel()
    layout = Layout(tmp_path_factory.mktemp("healthy"))
    layout.units.mkdir(parents=True)
    node = Node(kernel, FakeSystemd(layout, running=[MACHINE]), layout)
    node.write("/bin/bash", "#!/bin/bash\necho 5.2\n", 0o755)
    for tool in ("ip", "awk", "flock", "timeout"):
        node.write(f"/usr/bin/{tool}", "", 0o755)
    node.write("/proc/cmdline", "quiet splash\n")
    node.write(f"{UNITS}/{TEMPLATE}.d/restart.conf", "[Service]\nRestart=on-failure\n")
    phases.run(Configure(config(SHADOWED, keep=KEEP), host=node.host))
    return node


@pytest.fixture
def node(healthy: Node, tmp_path: Path) -> Node:
    kernel = shadowed_kernel()
    installed = read_routes(healthy.kernel)
    assert not kernel.write(
        Write.ADD, [route for route in installed if route.is_ours or route.is_in_side_table]
    )
    rules = [rule for rule in healthy.kernel.facts().rules if rule.is_ours]
    assert not kernel.write_rules(Write.ADD, rules)
    shutil.copytree(healthy.layout.root, tmp_path, symlinks=True, dirs_exist_ok=True)
    units = FakeSystemd(Layout(tmp_path), running=[MACHINE])
    units.enabled, units.active = set(healthy.units.enabled), set(healthy.units.active)
    return Node(kernel, units, Layout(tmp_path))


def test_a_host_of_fakes_is_healthy(tmp_path: Path) -> None:
    """docs/howto/embed.md has such a host: a folder without any program."""
    layout = Layout(tmp_path)
    host = Host(shadowed_kernel(), FakeSystemd(layout, running=[MACHINE]), layout)
    phases.run(Configure(config(SHADOWED, keep=KEEP), host=host))
    report = examine(host=host)
    assert (kinds(report), report.is_broken) == (["no-restart"], False)


def kinds(report: DoctorReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def everything(node: Node) -> object:
    return (
        read_trees(node.layout.root),
        read_routes(node.kernel),
        node.units.enabled,
        node.units.reloads,
    )


@pytest.mark.parametrize("given", [None, config(SHADOWED, keep=KEEP)], ids=["installed", "config"])
def test_a_healthy_host_has_no_finding(node: Node, given: Config | None) -> None:
    before = everything(node)
    report = examine(given, host=node.host)
    assert report.findings == ()
    assert [each.name for each in report.found] == [each.name for each in CHECKS]
    assert page_text(doctor_page(report), None).endswith("nothing was found: the gate holds\x1b[0m")
    assert everything(node) == before


# --- the planted findings -------------------------------------------------------------------------


def forget_to_reload(node: Node) -> None:
    gates = {gate: gate.read_text() for gate in node.layout.gates(TEMPLATE)}
    for gate in gates:
        gate.unlink()
    node.reload()
    for gate, text in gates.items():
        gate.write_text(text)


def writes(
    path: str, text: str, mode: int = 0o644, *, reload: bool = False
) -> Callable[[Node], None]:
    def plant(node: Node) -> None:
        node.write(path, text, mode)
        if reload:
            node.reload()

    return plant


def has(
    setting: str, section: str = "Service", *, name: str = "x", reload: bool = True
) -> Callable[[Node], None]:
    """Return a function that adds a setting to a drop-in for the machine."""
    return writes(f"{UNITS}/{MACHINE}.d/{name}.conf", f"[{section}]\n{setting}\n", reload=reload)


def set_the_invocation(node: Node) -> None:
    """The first file doesn't exist, and the second name is a pattern."""
    node.write("/etc/default/node", "# INVOCATION_ID=1\nA=INVOCATION_ID\n  INVOCATION_ID=a1\n")
    has("EnvironmentFile=-/etc/default/other\nEnvironmentFile=/etc/default/no*")(node)


def links(path: str, target: str) -> Callable[[Node], None]:
    return lambda node: node.link(path, target)


def edit_a_script(node: Node) -> None:
    node.write(
        ROUTES,
        node.read(ROUTES).replace("readonly GATE_SECONDS=5", "readonly GATE_SECONDS=0"),
        0o755,
    )


def break_the_ordering(node: Node) -> None:
    unit = f"{UNITS}/static-routes.service"
    node.write(unit, f"{node.read(unit)}[Unit]\nAfter={MACHINE}\n")


def delete_the_default(node: Node) -> None:
    assert not node.kernel.write(
        Write.DELETE,
        [route for route in read_routes(node.kernel) if route.destination.prefixlen == 0],
    )


def forget_the_uplink(node: Node) -> None:
    node.layout.verified.unlink()


def delete_default_and_record(node: Node) -> None:
    forget_the_uplink(node)
    delete_the_default(node)


def replace_the_default(node: Node) -> None:
    delete_the_default(node)
    add_a_default(node)


def add_default_and_forget(node: Node) -> None:
    forget_the_uplink(node)
    add_a_default(node)


def never_restart(node: Node) -> None:
    node.remove(f"{UNITS}/{TEMPLATE}.d/restart.conf")
    node.reload()


def mask_the_gate(node: Node) -> None:
    node.link(f"/etc/systemd/system.control/{TEMPLATE}.d/{GATE}", "/dev/null")
    node.reload()


def flush_by_networkd(node: Node) -> None:
    node.manage("systemd-networkd.service", "/run/systemd/netif/links", "ADMIN_STATE=configured\n")


def flush_by_network_manager(node: Node) -> None:
    node.manage("NetworkManager.service", "/run/NetworkManager/devices", "[device]\nmanaged=true\n")


ONESHOT, OTHER_ONESHOT = "static-routes.service", "check-route-overlap.service"
OVERRIDE, TAKE_AWAY, SHOW = "[Service]\nExecStartPre=\n", "remove it", f"systemctl cat {MACHINE}"
RELOAD, GATE = "systemctl daemon-reload; hostrouting doctor", "zz-hostrouting.conf"


def add_a_default(node: Node) -> None:
    node.kernel.add_link("eth1")
    node.kernel.add_address("eth1", "10.9.0.4/24")
    other = Route(DEFAULT_DESTINATION, (NextHop("eth1", IPv4Address("10.9.0.1")),), metric=500)
    assert not node.kernel.write(Write.ADD, [other])


def add_kubelet(node: Node) -> None:
    node.write(f"{UNITS}/kubelet.service", "[Service]\nExecStart=/bin/true\n")
    node.link(f"{UNITS}/multi-user.target.wants/kubelet.service", "../kubelet.service")


def delete_the_rule_of_table_local(node: Node) -> None:
    node.kernel.del_rule(KERNEL_RULES[0])


def put_the_scripts_behind_a_link(node: Node) -> None:
    """Any user with write access to /srv/open can replace the symlink's target."""
    folder = node.layout.of("/srv/open")
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    node.layout.of(CONFIG_DIR).rename(folder / "config")
    node.link(CONFIG_DIR, "../srv/open/config")


# For each fault: the function that injects it, and the finding's kind, part of its subject and part
# of its hint.
FAULTS: dict[str, tuple[Callable[[Node], object], str, str, str]] = {
    "edited script": (edit_a_script, "file-differs", ROUTES, "hostrouting apply"),
    "script not executable": (
        lambda n: n.layout.of(CHECK).chmod(0o644),
        "file-mode",
        CHECK,
        "chmod 0755",
    ),
    "folder behind a link": (
        put_the_scripts_behind_a_link,
        "file-mode",
        "/srv/open",
        "chmod go-w /srv/open",
    ),
    "shadowed": (
        lambda n: n.divert("172.16.1.0/25"),
        "shadowed",
        TEMPLATE,
        "fix CONFIG prints what fixes it",
    ),
    "shadowed without ours": (
        lambda n: n.delete_ours(),
        "shadowed",
        TEMPLATE,
        "hostrouting apply /",
    ),
    "no default route": (
        delete_default_and_record,
        "unjudged",
        TEMPLATE,
        "hostrouting check",
    ),
    "no uplink recorded": (forget_the_uplink, "no-record", TEMPLATE, "hostrouting apply"),
    "the default route of another interface": (
        replace_the_default,
        "moved",
        TEMPLATE,
        "hostrouting check",
    ),
    "no rule for table local": (
        delete_the_rule_of_table_local,
        "unjudged",
        TEMPLATE,
        "hostrouting check",
    ),
    "two default routes": (
        add_default_and_forget,
        "contested",
        TEMPLATE,
        "hostRouting.uplinks",
    ),
    "consumer gone": (
        lambda n: setattr(n.units, "_running", ()),
        "no-consumer",
        TEMPLATE,
        "as consumer in CONFIG",
    ),
    "the host's own kubelet": (
        add_kubelet,
        *("not-held", "kubelet.service", "set hostRouting.consumer in CONFIG to kubelet.service"),
    ),
    "machine masked": (
        lambda n: n.units.properties.update({MACHINE: {"LoadState": "masked"}}),
        *("masked", MACHINE, f"systemctl unmask {MACHINE}"),
    ),
    "success by the gate's status": (
        has("SuccessExitStatus=133 255"),
        "gate-disobeyed",
        MACHINE,
        SHOW,
    ),
    "one name for all starts": (set_the_invocation, "gate-disobeyed", MACHINE, SHOW),
    "a separate network": (has("PrivateNetwork=yes"), "own-network", MACHINE, TAKE_AWAY),
    "override not read yet": (
        has("ExecStartPre=", name="zzz", reload=False),
        "not-reloaded",
        MACHINE,
        RELOAD,
    ),
    "override for all services": (
        writes(f"{UNITS}/service.d/zzz.conf", OVERRIDE),
        "not-reloaded",
        MACHINE,
        RELOAD,
    ),
    "masked and not read yet": (
        links(f"{UNITS}/{MACHINE}.d/{GATE}", "/dev/null"),
        "not-reloaded",
        MACHINE,
        RELOAD,
    ),
    "gate masked": (
        mask_the_gate,
        "gate-overridden",
        MACHINE,
        f"rm /etc/systemd/system.control/{TEMPLATE}.d/{GATE}",
    ),
    "an override below /usr/lib": (
        writes(f"/usr/lib/systemd/system/{MACHINE}.d/zzz.conf", OVERRIDE, reload=True),
        *("gate-overridden", MACHINE, f"out of /usr/lib/systemd/system/{MACHINE}.d/zzz.conf"),
    ),
    "overridden ExecStartPre=": (
        writes(f"{UNITS}/{MACHINE}.d/zzz-override.conf", OVERRIDE, reload=True),
        *(
            "gate-overridden",
            MACHINE,
            f"ExecStartPre= out of /{UNITS}/{MACHINE}.d/zzz-override.conf",
        ),
    ),
    "systemd not reloaded": (
        forget_to_reload,
        "gate-overridden",
        MACHINE,
        "systemctl daemon-reload",
    ),
    "not ordered": (forget_to_reload, "not-ordered", MACHINE, "systemctl daemon-reload"),
    "no Restart=": (
        never_restart,
        "no-restart",
        MACHINE,
        r"[Service]\nRestart=on-failure\n' >>/etc",
    ),
    "no restart after the gate's status": (
        has("RestartPreventExitStatus=1 255"),
        "no-restart",
        MACHINE,
        r"\nRestartPreventExitStatus=\nRestartPreventExitStatus=1\n",
    ),
    "two starts an hour": (
        has("StartLimitIntervalSec=1h\nStartLimitBurst=2", "Unit"),
        *("no-restart", MACHINE, "StartLimitIntervalSec=0"),
    ),
    "oneshot overridden": (
        lambda n: n.units.properties.update({ONESHOT: {"DropInPaths": "/x"}}),
        *("overridden", ONESHOT, f"systemctl cat {ONESHOT}"),
    ),
    "ordering cycle": (
        break_the_ordering,
        "ordering-cycle",
        ONESHOT,
        "remove one After= or Before=",
    ),
    "unit gone": (
        lambda n: n.remove(f"{UNITS}/{ONESHOT}"),
        "file-missing",
        ONESHOT,
        "hostrouting apply",
    ),
    "unit masked": (
        links(f"{UNITS}/{ONESHOT}", "/dev/null"),
        "masked",
        ONESHOT,
        f"systemctl unmask {ONESHOT}",
    ),
    "unit not enabled": (
        lambda n: n.units.disable(OTHER_ONESHOT),
        *("not-enabled", OTHER_ONESHOT, f"systemctl enable {OTHER_ONESHOT}"),
    ),
    "script gone": (lambda n: n.remove(ROUTES), "file-missing", ROUTES, "hostrouting apply"),
    "bash is another shell": (
        writes("/bin/bash", "#!/bin/sh\necho\n", 0o755),
        "tool-missing",
        "bash",
        "install bash",
    ),
    "flock can't be run": (
        lambda n: n.layout.of("/usr/bin/flock").chmod(0o644),
        "tool-missing",
        "flock",
        "util-linux",
    ),
    "no awk": (lambda n: n.remove("/usr/bin/awk"), "tool-missing", "awk", "install mawk"),
    "the reference's link": (
        links(f"{UNITS}/{TEMPLATE}.requires/{ONESHOT}", f"/etc/systemd/system/{ONESHOT}"),
        *("go-package-link", f"{TEMPLATE}.requires/{ONESHOT}", "rm /etc/systemd/system"),
    ),
    "the reference's other link": (
        links(f"{UNITS}/{TEMPLATE}.wants/{ONESHOT}", f"/etc/systemd/system/{ONESHOT}"),
        *("go-package-link", f"{TEMPLATE}.wants/{ONESHOT}", "rm /etc/systemd/system"),
    ),
    "the reference's agent": (
        writes(
            f"{UNITS}/aks-flex-node-agent.service",
            "[Service]\nExecStart=/usr/local/bin/aks-flex-node agent\n",
        ),
        *("another-agent", "aks-flex-node-agent.service", "leave hostRouting out"),
    ),
    "an old gate": (
        writes(f"{UNITS}/kubelet.service.d/10-hostrouting.conf", "[Service]\nExecStartPre=/gone\n"),
        *("stale-gate", "kubelet.service.d/10-hostrouting.conf", "rm /etc"),
    ),
    "routes that wait": (delete_the_default, "route-waits", "static routes", "bring it up"),
    "route gone": (
        lambda n: n.delete_ours(),
        "route-missing",
        "172.16.1.0/24",
        "hostrouting apply",
    ),
    "route beaten": (
        lambda n: n.divert("172.16.1.0/25", "172.16.1.128/25"),
        *("route-fails", "static routes", "ip -4 route show root 172.16.1.0/24"),
    ),
    "a route that no config has": (
        lambda n: n.kernel.write(
            Write.ADD,
            [Route(parse_any_cidr("172.16.9.0/24"), (NextHop("eth0", IPv4Address("10.1.0.1")),))],
        ),
        *("route-left", "172.16.9.0/24", "hostrouting apply"),
    ),
    "a rule that no config has": (
        lambda n: n.kernel.ip("rule add pref 77 to 172.16.9.0/24 lookup main proto 217"),
        *("rule-left", "172.16.9.0/24", "hostrouting apply"),
    ),
    "networkd": (
        flush_by_networkd,
        "networkd-flushes",
        "eth0",
        "  Destination=172.16.1.0/24\n  Gateway=10.1.0.1",
    ),
    "NetworkManager": (
        flush_by_network_manager,
        *("network-manager-flushes", "eth0", "+ipv4.routes '172.16.1.0/24 GATEWAY'"),
    ),
    "cloud-init": (
        writes("/etc/udev/rules.d/90-cloud-init-hook-hotplug.rules", "ACTION==add\n"),
        *(
            "cloud-init-hotplug",
            "/etc/udev/rules.d/90-cloud-init-hook-hotplug.rules",
            "updates.network.when",
        ),
    ),
    "break-glass file": (
        writes(f"{STATE_DIR}/gate.off", ""),
        "gate-off",
        "gate.off",
        "rm /etc/hostrouting/gate.off",
    ),
    "break-glass argument": (
        writes("/proc/cmdline", "quiet hostrouting.gate=off\n"),
        *("gate-off", "/proc/cmdline", "boot loader"),
    ),
    "manifest broken": (
        writes(f"{STATE_DIR}/installed.json", "{"),
        *("not-examined", "installed", "then: hostrouting doctor"),
    ),
}

# Kinds and faults that are only a risk. The severity of all others is "broken".
RISKS = {
    *(
        "another-agent",
        "cloud-init-hotplug",
        "contested",
        "masked",
        "moved",
        "network-manager-flushes",
        "networkd-flushes",
    ),
    *(
        "no-record",
        "no-restart",
        "not-enabled",
        "not-held",
        "not-ordered",
        "ordering-cycle",
        "overridden",
        "route-left",
        "rule-left",
        "stale-gate",
        "tied",
    ),
    "the reference's other link",
}
SEVERITIES = dict.fromkeys(RISKS, Severity.RISK) | dict.fromkeys(
    ("not-examined", "not-reloaded"), Severity.UNKNOWN
)


@pytest.mark.parametrize("finding", FAULTS)
def test_each_planted_fault_is_found_with_its_hint(node: Node, finding: str) -> None:
    plant, kind, subject, hint = FAULTS[finding]
    plant(node)
    report = examine(host=node.host)
    found = [each for each in report.findings if each.kind == kind and subject in each.subject]
    assert found, report.findings
    assert hint in found[0].hint
    expected = SEVERITIES.get(finding, SEVERITIES.get(kind, Severity.BROKEN))
    listed = f"add {kind!r} to RISKS if it is only a risk, or to SEVERITIES if it is unknown"
    assert found[0].severity is expected, listed
    assert found[0].subject in page_text(doctor_page(report), None)
    examples = {check for check, fault in PLANTED.items() if fault == finding}
    assert examples <= {check.name for check, its in report.found.items() if found[0] in its}


def test_the_verdict_names_why_nothing_is_received(node: Node) -> None:
    delete_the_rule_of_table_local(node)
    (unjudged,) = (each for each in examine(host=node.host).findings if each.kind == "unjudged")
    assert UnknownReason.NO_LOCAL_TABLE in unjudged.message
    assert "rule add preference 0 lookup local" in unjudged.message


@pytest.mark.parametrize(
    "other",
    [
        config("172.16.2.0/24"),
        config(SHADOWED, keep=KEEP, consumer="kubelet.service"),
        config(SHADOWED, keep=KEEP, routeOverlap={}),
    ],
)
def test_another_config_is_not_reported_as_an_edited_script(node: Node, other: Config) -> None:
    assert "another-config" in kinds(examine(other, host=node.host))
    edit_a_script(node)
    (edited,) = [
        each
        for each in examine(config(SHADOWED, keep=KEEP), host=node.host).findings
        if each.kind == "file-differs"
    ]
    assert "edited" in edited.message


def test_without_an_installation_only_that_is_found(node: Node) -> None:
    manifest = f"{STATE_DIR}/installed.json"
    text = node.read(manifest)
    node.remove(manifest)  # the Go package leaves such files behind
    assert {"stale-file", "stale-gate"} <= set(kinds(examine(host=node.host)))
    node.write(manifest, text)
    phases.run(RemoveHostRouting(host=node.host))
    report = examine(host=node.host)
    assert kinds(report) == kinds(examine(Config(), host=node.host)) == ["not-installed"]
    assert "gate" not in [each.name for each in report.found]
    assert report.findings[0].hint.startswith("hostrouting check shows what fails; to install: ")


@pytest.mark.parametrize(
    ("uplinks", "keep", "found"), [(["*"], [], ["contested"]), (["eth*"], KEEP, [])]
)
def test_infiniband_among_the_uplinks_is_found(
    node: Node, uplinks: list[str], keep: list[str], found: list[str]
) -> None:
    phases.run(Configure(config(SHADOWED, keep=keep, uplinks=uplinks), host=node.host))
    assert kinds(examine(host=node.host)) == found


@pytest.mark.parametrize(("metric", "uplink"), [(50, "eth1"), (200, "eth0")])
def test_several_default_routes_stay_a_risk_after_the_check_has_passed(
    node: Node, metric: int, uplink: str
) -> None:
    """The first check that passes records the interface that wins, be it right or wrong."""
    delete_default_and_record(node)
    node.kernel.ip("route add default via 10.1.0.1 dev eth0 metric 100")
    node.kernel.ip("link add eth1")
    node.kernel.ip("address add 10.9.0.4/24 dev eth1")
    node.kernel.ip(f"route add default via 10.9.0.1 dev eth1 metric {metric}")
    phases.run(Configure(config(SHADOWED, keep=KEEP), host=node.host))
    (finding,) = examine(host=node.host).findings
    assert (finding.kind, finding.severity) == ("contested", Severity.RISK)
    assert finding.message.startswith(f"{uplink} is the uplink only because the check first passed")
    assert '["eth0"]' in finding.message
    named = config(SHADOWED, keep=KEEP, uplinks=["eth0"])
    (finding, _) = examine(named, host=node.host).findings
    assert "CONFIG names other uplinks than the installed config: " in finding.hint
    phases.run(Configure(named, host=node.host))
    assert examine(host=node.host).findings == ()


def test_named_uplinks_may_have_lost_their_default_route(node: Node) -> None:
    add_a_default(node)
    phases.run(
        Configure(
            config(SHADOWED, keep=KEEP, cidrs=["10.96.0.0/12"], uplinks=["eth0"]), host=node.host
        )
    )
    node.kernel.ip("route del default via 10.1.0.1 dev eth0")
    found = [each for each in examine(host=node.host).findings if each.kind == "contested"]
    assert [each.hint.partition(",")[0] for each in found] == ["if eth0 leads to the cluster"]


@pytest.mark.parametrize("mode", ["WARN", "STRICT"])
def test_infiniband_with_the_only_default_route_is_found(node: Node, mode: str) -> None:
    """In STRICT mode, the check passes and records it, and it stays in doubt until it is named."""
    delete_the_default(node)
    forget_the_uplink(node)
    node.kernel.ip("route add default via 172.16.0.1 dev ib0")
    given = config(cidrs=["10.96.0.0/12"], mode=mode)
    phases.run(Configure(given, host=node.host))
    (finding,) = examine(host=node.host).findings
    assert (finding.kind, finding.severity) == ("contested", Severity.RISK)
    assert "only InfiniBand has a default route, so ib0 counts" in finding.message
    named = attrs.evolve(given, uplinks=["ib0"])
    phases.run(Configure(named, host=node.host))
    assert examine(host=node.host).findings == ()


def test_a_watcher_missing_from_the_manifest_is_found(node: Node) -> None:
    watched = attrs.evolve(config(SHADOWED, keep=KEEP), watch={"enabled": True})
    phases.run(Configure(watched, host=node.host))
    names = ("hostrouting-watch", "static-routes")
    texts = {name: node.read(f"{UNITS}/{name}.service") for name in names}
    phases.run(RemoveHostRouting(host=node.host))
    for name, text in texts.items():
        node.write(f"{UNITS}/{name}.service", text.replace("# Written by hostrouting", "# old"))
    findings = examine(config(SHADOWED, keep=KEEP), host=node.host).findings
    found = {each.subject: each.hint for each in findings if each.kind == "stale-file"}
    watch = found[f"/{UNITS}/hostrouting-watch.service"]
    assert watch.startswith("systemctl disable --now hostrouting-watch.service; rm ")
    assert found[f"/{UNITS}/static-routes.service"].startswith(
        "systemctl disable static-routes.service; rm "
    )


def test_the_watcher_may_use_another_python_that_works(node: Node) -> None:
    watched = config(SHADOWED, keep=KEEP, watch={"enabled": True})
    phases.run(Configure(watched, host=node.host))
    unit = "hostrouting-watch.service"
    own, text = f'"{sys.executable}"', node.read(f"{UNITS}/{unit}")
    assert own in text
    node.write(f"{UNITS}/{unit}", text.replace(own, "/opt/venv/bin/python"))
    assert kinds(examine(watched, host=node.host)) == []
    node.units.stop(unit)
    (down,) = examine(watched, host=node.host).findings
    assert (down.kind, "hostrouting apply CONFIG starts it" in down.hint) == ("watcher-down", True)
    assert (unit, "restarted") in (
        (each.what, each.action) for each in plan(watched, host=node.host).changes.units
    )
    node.units.properties[unit] = {
        "ActiveState": "activating",
        "SubState": "auto-restart",
        "NRestarts": "1",
    }
    assert kinds(examine(watched, host=node.host)) == ["watcher-fails"]
    node.units.properties[unit] = {"ActiveState": "active", "SubState": "running", "NRestarts": "1"}
    assert kinds(examine(watched, host=node.host)) == []
    node.units.properties[unit]["NRestarts"] = "3"
    assert kinds(examine(watched, host=node.host)) == ["watcher-fails"]
    node.write(f"{UNITS}/{unit}", text.replace("Restart=always", "Restart=no"))
    assert "file-differs" in kinds(examine(watched, host=node.host))


def test_a_command_in_place_of_the_path_of_python_is_found(node: Node) -> None:
    watched = config(SHADOWED, keep=KEEP, watch={"enabled": True})
    phases.run(Configure(watched, host=node.host))
    unit = f"{UNITS}/hostrouting-watch.service"
    own = f'"{sys.executable}"'
    for path, line, edited in (
        (CHECK, "readonly PYTHON=", "readonly PYTHON=''; touch /run/here\n"),
        (CHECK, "readonly PYTHON=", "readonly PYTHON=$(touch /run/here)\n"),
        (
            unit,
            "ExecStart=",
            f'ExecStart=/bin/sh -c "touch /run/here" {own} -I -m hostrouting watch',
        ),
    ):
        text = node.read(path)
        before, _, after = text.partition(line)
        rest = (
            after.partition("\n")[2] if path == CHECK else after.partition("hostrouting watch")[2]
        )
        node.write(path, before + edited + rest, 0o755 if path == CHECK else 0o644)
        report = examine(watched, host=node.host)
        assert [each.subject for each in report.findings if each.kind == "file-differs"] == [
            f"/{path.lstrip('/')}"
        ]
        node.write(path, text, 0o755 if path == CHECK else 0o644)
    assert kinds(examine(watched, host=node.host)) == []


def test_unwritable_metrics_are_found_with_their_folder(node: Node) -> None:
    watched = config(
        SHADOWED,
        keep=KEEP,
        watch={"enabled": True, "textfile": "/var/lib/metrics/hostrouting.prom"},
    )
    phases.run(Configure(watched, host=node.host))

    def found() -> list[tuple[str, str]]:
        return [(each.kind, each.subject) for each in examine(watched, host=node.host).findings]

    assert found() == [("textfile", "/var/lib/metrics")]
    node.layout.of("/var/lib/metrics").mkdir(parents=True)
    assert found() == [("textfile", "/var/lib/metrics/hostrouting.prom")]
    node.write("/var/lib/metrics/hostrouting.prom", "")
    assert found() == []


PLACES = (CHECK, CONFIG_DIR, "run/aks-flex-node", f"{UNITS}/{TEMPLATE}.d", "etc")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_and_folders_of_other_owners_are_found(node: Node) -> None:
    for path in PLACES:
        os.chown(node.layout.of(path), 65534, -1)
    found = {(each.kind, each.subject, each.hint) for each in examine(host=node.host).findings}
    assert found == {("file-owner", f"/{path}", f"chown root:root /{path}") for path in PLACES}


def test_files_and_folders_that_others_may_write_are_found(node: Node) -> None:
    for path in PLACES:
        node.layout.of(path).chmod(0o777)
    found = {(each.kind, each.subject, each.hint) for each in examine(host=node.host).findings}
    assert found == {("file-mode", f"/{path}", f"chmod go-w /{path}") for path in PLACES}


OURS = (
    *(f"{STATE_DIR}/{name}" for name in ("gate.off", "stages/a", "uplink")),
    *(f"run/aks-flex-node/{name}" for name in ("run.lock", "lock", "passed/1", "adopted")),
    *(f"run/aks-flex-node/trial.{name}" for name in ("json", "confirmed.json", "sh")),
    *(f"run/aks-flex-node/route-overlap.{name}" for name in ("ok", "detected", "json")),
    *("var/lib/hostrouting/good.json", "var/lib/hostrouting/bad.json"),
)


def test_each_file_of_ours_is_looked_at(node: Node) -> None:
    for path in OURS:
        node.write(path, "").chmod(0o602)
    node.write("run/aks-flex-node/agent.sock", "").chmod(0o666)  # isn't ours
    checks = [check for check in CHECKS if check.name == "modes"]
    found = {
        (each.kind, each.subject, each.hint)
        for each in examine(host=node.host, checks=checks).findings
    }
    assert found == {("file-mode", f"/{path}", f"chmod go-w /{path}") for path in OURS}


@pytest.mark.parametrize("mode", [0o644, 0o640])
@pytest.mark.parametrize("lock", ["lock", "run.lock"])
def test_a_lock_that_others_may_open_is_found(node: Node, lock: str, mode: int) -> None:
    path = f"run/aks-flex-node/{lock}"
    node.layout.of(path).chmod(mode)
    (found,) = examine(host=node.host).findings
    assert (found.subject, found.hint) == (f"/{path}", f"chmod 0600 /{path}")


def test_a_python_that_others_may_change_is_found(node: Node) -> None:
    script, packages = (
        node.layout.of(CHECK),
        node.layout.of("/opt/venv/lib/python3.12/site-packages"),
    )
    script.write_text(script.read_text().replace("PYTHON=''", "PYTHON=/opt/venv/bin/python"))
    write_file(node.layout.of("/opt/venv/bin/python"), "")
    write_file(packages / "attr/__pycache__/_make.pyc").chmod(0o666)
    packages.chmod(0o777)
    found = {(each.kind, each.subject) for each in examine(host=node.host).findings}
    folder = "/opt/venv/lib/python3.12/site-packages"
    assert found == {
        ("file-mode", folder),
        ("file-mode", f"{folder}/attr/__pycache__/_make.pyc"),
    }


def test_a_python_of_the_watcher_that_others_may_change_is_found(node: Node) -> None:
    watched = config(SHADOWED, keep=KEEP, watch={"enabled": True})
    phases.run(Configure(watched, host=node.host))
    write_file(node.layout.of("/run/my venv%/bin/python"), "")
    node.layout.of("/run/my venv%").chmod(0o777)
    unit = node.layout.unit("hostrouting-watch")
    text = re.sub('(?m)^ExecStart=".*"', 'ExecStart="/run/my venv%%/bin/python"', unit.read_text())
    unit.write_text(text)
    found = {(each.kind, each.subject) for each in examine(watched, host=node.host).findings}
    assert found == {("file-mode", "/run/my venv%")}


def test_a_default_config_that_others_may_write_is_a_risk(node: Node) -> None:
    write_file(node.layout.config, "{}")
    node.layout.config.chmod(0o660)
    assert examine(host=node.host).findings == ()
    node.layout.config.chmod(0o606)
    (found,) = examine(host=node.host).findings
    assert (found.kind, found.subject, found.severity, found.hint) == (
        "file-mode",
        "/etc/aks-flex-node/config.json",
        Severity.RISK,
        "chmod go-w /etc/aks-flex-node/config.json",
    )
    assert found.message.endswith("users other than root can change what the next apply installs")


HIDING = (
    *(f"BindPaths=/bin/true:/{CHECK}:rbind", "BindReadOnlyPaths=/bin/true:/usr/bin/timeout"),
    *(
        "BindReadOnlyPaths=/x:/proc/cmdline",
        "TemporaryFileSystem=/usr/lib",
        "TemporaryFileSystem=/run:ro",
    ),
    "RootDirectory=/var/lib/machines",
)


def test_each_mount_that_hides_something_is_found(node: Node) -> None:
    has("\n".join(HIDING))(node)
    found = [each for each in examine(host=node.host).findings if each.kind == "own-files"]
    assert {(each.subject, each.message.partition("(")[2].partition(")")[0]) for each in found} == {
        (MACHINE, setting) for setting in HIDING
    }
    assert all("remove it" in each.hint for each in found)


def test_only_a_held_lock_is_found(node: Node) -> None:
    def found() -> list[str]:
        return kinds(examine(host=node.host, scope=CancelScope(clock=FakeClock())))

    with locked(node.layout.lock, CancelScope()):
        assert found() == ["locked"]
    assert found() == []


def test_each_tie_is_found_with_its_cost(node: Node) -> None:
    """The doctor reports it, but apply doesn't fail."""
    ties = {
        "Requires": ONESHOT,
        "PartOf": OTHER_ONESHOT,
        "StopPropagatedFrom": OTHER_ONESHOT,
        "Conflicts": ONESHOT,
    }
    node.units.properties[MACHINE] = ties
    found = [each for each in examine(host=node.host).findings if each.kind == "tied"]
    assert [(each.subject, each.severity) for each in found] == [(MACHINE, Severity.RISK)] * 2
    first, other = found
    assert first.message.startswith(f"Requires={ONESHOT} and Conflicts={ONESHOT}: ")
    assert other.message.startswith(
        f"PartOf={OTHER_ONESHOT} and StopPropagatedFrom={OTHER_ONESHOT}: "
    )
    for cost in (
        "stopping or restarting",
        "isn't retried",
        "after hostrouting remove, a start is refused",
    ):
        assert cost in first.message
    assert f"/run/systemd /usr/lib/systemd -path '*.requires/{ONESHOT}'" in first.hint
    phases.run(Configure(config(SHADOWED, keep=KEEP, mode="WARN"), host=node.host))


def mask_another_drop_in(node: Node) -> None:
    """Masking another drop-in, or being masked by one, doesn't require a reload."""
    node.link(f"{UNITS}/{MACHINE}.d/50-nothing.conf", "/dev/null")
    node.write(f"/usr/lib/systemd/system/{TEMPLATE}.d/{GATE}", OVERRIDE)


def flush_beside_the_watcher(node: Node) -> None:
    flush_by_networkd(node)
    flush_by_network_manager(node)
    node.write("/etc/udev/rules.d/90-cloud-init-hook-hotplug.rules", "ACTION==add\n")
    node.units.restart("hostrouting-watch.service")


def manage_others(node: Node) -> None:
    node.write(NETWORKD_CONF, "[Network]\nManageForeignRoutingPolicyRules=no\n")
    node.manage("systemd-networkd.service", "/run/systemd/netif/links", "ADMIN_STATE=unmanaged\n")
    node.manage(
        "NetworkManager.service", "/run/NetworkManager/devices", "[device]\nmanaged=false\n"
    )


def with_policy_routing(node: Node, **more: Any) -> Config:
    """Install a config with a rule and kept interfaces."""
    static = {
        "enabled": True,
        "routes": [{"destination": SHADOWED}],
        "rules": [{"to": SHADOWED, "priority": 5269}],
        "keep": ["ib*"],
    }
    given = config(staticRoutes=static, **more)
    phases.run(Configure(given, host=node.host))
    return given


@pytest.mark.parametrize("manage", [flush_by_networkd, flush_by_network_manager])
def test_a_managers_side_tables_are_named_once(node: Node, manage: Callable[[Node], None]) -> None:
    node.kernel.add_link("ib1")
    node.kernel.add_address("ib1", "172.16.0.11/16")
    node.write(NETWORKD_CONF, "[Network]\nManageForeignRoutingPolicyRules=no\n")
    given = with_policy_routing(node)
    manage(node)
    found = examine(given, host=node.host).findings
    assert [each.subject for each in found] == ["eth0", "ib0, ib1"]
    assert len({each.kind for each in found}) == 1
    assert found[1].hint == "hostrouting watch restores lost routes"


def policy_findings(node: Node, given: Config) -> list[tuple[str, str]]:
    return [(found.kind, found.subject) for found in examine(given, host=node.host).findings]


def test_missing_rules_and_side_tables_are_found(node: Node) -> None:
    given = with_policy_routing(node)
    kernel = node.kernel
    assert policy_findings(node, given) == []
    before = everything(node), kernel.facts().rules

    kept, local, main = (rule for rule in kernel.facts().rules if rule.is_ours)
    kernel.write_rules(Write.DELETE, [local])
    assert policy_findings(node, given) == [
        ("rule-missing", f"5269: from all to {SHADOWED} lookup local"),
        ("rule-missing", f"5269: from all to {SHADOWED} lookup main"),
    ]
    kernel.write_rules(Write.DELETE, [main])
    kernel.write_rules(Write.ADD, [local, main])
    side = [route for route in read_routes(kernel) if route.is_in_side_table]
    assert not kernel.write(Write.DELETE, side)
    assert policy_findings(node, given) == [("route-missing", str(side[0]))]
    assert not kernel.write(Write.ADD, side)
    kernel.write_rules(Write.DELETE, [kept])
    (finding,) = examine(given, host=node.host).findings
    assert (finding.kind, finding.subject) == (
        "rule-missing",
        "2170: from 172.16.0.10 lookup 2170000",
    )
    assert finding.hint.startswith("hostrouting apply")
    phases.run(Configure(given, host=node.host))
    assert (everything(node), kernel.facts().rules) == before


def test_a_rule_that_decides_before_ours_is_named(node: Node) -> None:
    given = with_policy_routing(node)
    node.divert("172.16.0.0/16", table=52)
    node.kernel.add_rule(Rule(7, table=52))
    found = [each for each in examine(given, host=node.host).findings if each.kind == "route-fails"]
    assert [each.subject for each in found] == ["static routes"]
    assert "because of the rule 7: from all lookup 52" in found[0].message
    assert "the gate holds each start of systemd-nspawn@.service" in found[0].message
    assert "ip -4 rule add from all lookup 52 preference 5000 && ip -4 rule del" in found[0].hint


def test_what_is_not_kept_is_a_risk(node: Node) -> None:
    static = {"enabled": True, "routes": [{"destination": SHADOWED}], "keep": ["*", "wg*"]}
    given = config(staticRoutes=static)
    node.kernel.add_link("ib1")
    node.kernel.add_address("ib1", "172.18.0.1/16")
    node.kernel.add_address("eth0", "172.18.0.1/32")
    node.kernel.add_link("ib2", up=False)
    phases.run(Configure(given, host=node.host))
    found = examine(given, host=node.host).findings
    assert [(each.kind, each.subject, each.severity) for each in found] == [
        ("not-kept", "eth0", Severity.RISK),
        ("not-kept", "172.18.0.1 of ib1", Severity.RISK),
        ("not-kept-yet", "kept interfaces", Severity.RISK),
    ]
    assert [each.message.rpartition(": ")[2] for each in found] == [
        "it is an uplink",
        "eth0 has this address, too",
        "ib2 (it is down)",
    ]


NETWORKD_CONF = "/etc/systemd/networkd.conf.d/10-rules.conf"


def test_networkd_drops_rules_unless_told_or_watched(node: Node) -> None:
    given = with_policy_routing(node)
    assert kinds(examine(given, host=node.host)) == []
    node.units.restart("systemd-networkd.service")
    (finding,) = examine(given, host=node.host).findings
    assert (finding.kind, finding.subject) == ("networkd-drops-rules", "systemd-networkd")
    assert finding.severity is Severity.RISK
    assert "ManageForeignRoutingPolicyRules=no" in finding.hint
    assert [*plan(given, host=node.host).warnings] == [
        warning
        for warning in phases.run(Configure(given, host=node.host)).warnings
        if "ManageForeignRoutingPolicyRules=no" in warning
    ]

    node.write(NETWORKD_CONF, "[Network]\nManageForeignRoutingPolicyRules=no\n")
    assert kinds(examine(given, host=node.host)) == []
    assert phases.run(Configure(given, host=node.host)).warnings == ()

    node.remove(NETWORKD_CONF)
    watched = with_policy_routing(node, watch={"enabled": True})
    assert phases.run(Configure(watched, host=node.host)).warnings == ()
    assert kinds(examine(watched, host=node.host)) == []


def install_by(python: str) -> Callable[[Node], None]:
    def plant(node: Node) -> None:
        text = node.read(CHECK)
        node.write(
            CHECK, re.sub("(?m)^readonly PYTHON=.*$", f"readonly PYTHON={python}", text), 0o755
        )
        assert node.read(CHECK) != text

    return plant


SETTINGS = (
    *(
        "SuccessExitStatus=133 3",
        "TimeoutStartSec=25s",
        "BindPaths=/srv:/opt",
        "BindPaths=/run /etc:/etc:rbind",
    ),
    *(
        "BindReadOnlyPaths=/usr:/usr",
        "BindReadOnlyPaths=/opt/python:/usr/bin/kubelet",
        "BindPaths=/srv:/dev/shm",
    ),
    *(
        "RuntimeDirectory=kubelet",
        "TemporaryFileSystem=/var",
        "Restart=always",
        "RestartPreventExitStatus=1",
    ),
    *(
        "Environment=MY_INVOCATION_ID=1 INVOCATION_IDS=2 A=INVOCATION_ID",
        "EnvironmentFile=-/etc/default/other",
    ),
)
QUIET = {
    "harmless settings": has("\n".join(SETTINGS)),
    **{python: install_by(python) for python in ("/opt/venv/bin/python", "/usr/bin/python3")},
    "masked drop-ins": mask_another_drop_in,
    "the watcher runs": flush_beside_the_watcher,
    "other interfaces are managed": manage_others,
}


def test_programs_may_remove_what_the_watcher_restores(node: Node) -> None:
    """Then ``fine`` doesn't deny that they do."""
    flush_beside_the_watcher(node)
    found = examine(host=node.host).found
    fine = {each.name: each.fine for each, findings in found.items() if not findings}
    for name in ("networkd", "networkmanager", "cloud-init"):
        assert fine[name].endswith(", or the watcher restores them")


@pytest.mark.parametrize("plant", QUIET.values(), ids=QUIET)
def test_harmless_changes_are_not_found(node: Node, plant: Callable[[Node], None]) -> None:
    plant(node)
    assert kinds(examine(host=node.host)) == []


def test_a_failing_check_is_a_finding(node: Node) -> None:
    host = Host(
        routes=node.kernel, units=ActingSystemd(node.layout, refusing("show")), layout=node.layout
    )
    report = examine(host=host)
    assert report.worst is Severity.UNKNOWN
    assert {each.kind for each in report.findings} == {"not-examined"}
    assert all("Connection timed out" in each.message for each in report.findings)
    fine = [each.name for each, findings in report.found.items() if not findings]
    assert fine[:3] == ["verdict", "trial", "installed"]
    text = page_text(doctor_page(report), None)
    assert text.count("Connection timed out") == text.count("do: ") == 1
    assert "couldn't be examined" in page_text(doctor_page(report), None).splitlines()[-1]


# --- the command ----------------------------------------------------------------------------------


def test_the_command_exits_with_0_or_1_and_prints_json(node: Node, capsys: Any) -> None:
    assert cli.main(["doctor"], host=node.host) == 0
    assert "✓ gate " in capsys.readouterr().out
    node.write(f"{STATE_DIR}/gate.off", "")
    assert cli.main(["doctor", "--output", "json"], host=node.host) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "broken"
    (finding,) = document["findings"]
    assert finding.pop("message")
    told = {
        "check": "break-glass",
        "kind": "gate-off",
        "severity": "broken",
        "subject": "/etc/hostrouting/gate.off",
    }
    assert finding == told | {"hint": "rm /etc/hostrouting/gate.off"}
    (gate,) = (each for each in document["checks"] if each["name"] == "gate")
    assert (gate.keys(), gate["ok"]) == ({"name", "ok", "fine"}, True)


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (lambda node: None, "its next start is let through, because it first installs the routes"),
        (
            lambda node: node.divert("172.16.1.0/25"),
            "its next start is held back: OVERLAP: expected CIDR 172.16.1.0/24",
        ),
        (
            writes(f"{STATE_DIR}/gate.off", ""),
            "its next start is let through unchecked, because the file /etc",
        ),
        (
            writes(
                f"{UNITS}/{MACHINE}.d/zzz.conf",
                "[Service]\nExecCondition=\nExecStartPre=\n",
                reload=True,
            ),
            f"nothing holds the next start of {MACHINE}, as its gate is overridden: OVERLAP",
        ),
    ],
)
def test_the_verdict_is_the_gates(
    node: Node, capsys: Any, plant: Callable[[Node], None], told: str
) -> None:
    """The verdict is on the first line and agrees with the gate's check."""
    node.delete_ours()
    plant(node)
    (finding,) = (each for each in examine(host=node.host).findings if each.kind == "shadowed")
    assert finding.message.startswith(told)
    assert cli.main(["doctor"], host=node.host) == 1
    assert told[:30] in capsys.readouterr().out.splitlines()[0]


def forgive(node: Node) -> None:
    """The start is let through, whatever the check says."""
    name = f"{STATE_DIR}/gate.list"
    node.write(name, node.read(name).replace(" required", " forgiven"))


@pytest.mark.parametrize("mode", ["STRICT", "WARN"])
@pytest.mark.parametrize(
    "change",
    [edit_a_script, forgive, lambda node: node.remove(f"{STATE_DIR}/gate.list")],
    ids=["script", "list", "no list"],
)
def test_a_start_is_not_predicted_while_the_gate_has_changed(
    node: Node, capsys: Any, change: Callable[[Node], None], mode: str
) -> None:
    given = config(SHADOWED, keep=KEEP, mode=mode)
    phases.run(Configure(given, host=node.host))
    change(node)
    node.delete_ours()
    (finding,) = (each for each in examine(host=node.host).findings if each.kind == "shadowed")
    assert finding.message.startswith("whether its next start is held isn't known, because /etc/")
    node.divert("172.16.1.0/25", "172.16.1.128/25")
    for found in examine(host=node.host).findings:
        assert not re.search("the gate holds|is held back|is let through", found.message)
    cli.main(["check"], host=node.host)
    assert "is held: " not in capsys.readouterr().out


@pytest.mark.parametrize("change", [edit_a_script, forgive], ids=["script", "list"])
def test_an_open_gate_stays_open_with_other_files_changed(
    node: Node, change: Callable[[Node], None]
) -> None:
    node.delete_ours()
    node.write(f"{STATE_DIR}/gate.off", "")
    change(node)
    (finding,) = (each for each in examine(host=node.host).findings if each.kind == "shadowed")
    assert finding.message.startswith("its next start is let through unchecked")


def lose_the_routes_and_their_place(node: Node) -> None:
    """Once the routes are installed again, other routes win over them."""
    node.delete_ours()
    node.divert("172.16.1.0/25", "172.16.1.128/25")


@pytest.mark.parametrize(
    ("plant", "kind", "is_held"),
    [
        (lambda node: node.delete_ours(), "shadowed", False),
        (lambda node: node.divert("172.16.1.0/25"), "shadowed", False),
        (lambda node: node.divert("172.16.1.0/25", "172.16.1.128/25"), "shadowed", True),
        (lose_the_routes_and_their_place, "shadowed", True),
        (delete_default_and_record, "unjudged", True),
    ],
)
def test_in_warn_mode_the_verdict_and_the_plan_agree(
    node: Node, plant: Callable[[Node], None], kind: str, is_held: bool
) -> None:
    given = config(SHADOWED, keep=KEEP, mode="WARN")
    phases.run(Configure(given, host=node.host))
    plant(node)
    (verdict,) = (each for each in examine(host=node.host).findings if each.kind == kind)
    told = "held back although the mode is WARN" if is_held else "let through, because the mode"
    assert verdict.message.startswith(f"its next start is {told}")
    assert plan(given, host=node.host).next_start.is_admitted is not is_held


@pytest.mark.parametrize(
    ("places", "table", "reason", "promise"),
    [
        (["172.16.1.7/32"], Table.MAIN, "no route fixes 172.16.1.7: ", ""),
        (
            ["172.16.1.7/32", "172.16.1.128/25"],
            Table.MAIN,
            "172.16.1.7: ",
            "CONFIG prints what fixes the rest",
        ),
        (["0.0.0.0/0"], 300, "", "CONFIG prints what fixes it"),
    ],
)
def test_fix_is_promised_only_for_what_it_fixes(
    node: Node, places: list[str], table: int, reason: str, promise: str
) -> None:
    phases.run(Configure(config(SHADOWED), host=node.host))  # a rule of keep would be in the way
    node.divert(*places, table=table)
    node.kernel.add_rule(Rule(50, table=300, source=parse_any_cidr("10.1.0.4/32")))
    (hint,) = {each.hint for each in examine(host=node.host).findings if each.kind == "shadowed"}
    assert (reason in hint, hint.partition("hostrouting fix ")[2]) == (True, promise)


def test_a_failing_verdict_names_the_watchers_snapshots(node: Node) -> None:
    node.divert("172.16.1.0/25")
    for path in node.host.layout.snapshots:
        write_file(path, "{}")
    (finding,) = (each for each in examine(host=node.host).findings if each.kind == "shadowed")
    named = "hostrouting diff /var/lib/hostrouting/good.json /var/lib/hostrouting/bad.json"
    assert finding.hint.splitlines()[-1].endswith(named)


def test_a_host_without_systemd_is_told_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check asks something else, and has a finding of its own in the JSON."""

    def show(_: object, *words: str) -> dict[str, str]:
        reason = f"`systemctl show {' '.join(words)}` failed: {NoSystemdError.reason}"
        raise NoSystemdError(reason, hint="apply --routes-only")

    monkeypatch.setattr(FakeSystemd, "show", show)
    host = Host(routes=node.kernel, units=FakeSystemd(node.layout), layout=node.layout)
    report = examine(host=host)
    unknown = [each for each in report.findings if each.severity is Severity.UNKNOWN]
    assert len(unknown) > 1
    lines = page_text(doctor_page(report), None).splitlines()
    (told,) = (line for line in lines if NoSystemdError.reason in line)
    assert all(each.subject in told for each in unknown)
    assert "--routes-only" not in "".join(lines)


@pytest.mark.parametrize("fault", ["no Restart=", "two starts an hour"])
def test_the_hint_for_restarts_is_a_command(node: Node, fault: str) -> None:
    """It spares earlier drop-ins."""
    FAULTS[fault][0](node)
    (hint,) = (each.hint for each in examine(host=node.host).findings if each.kind == "no-restart")
    commands, _, reload = hint.rpartition("; ")
    assert reload == "systemctl daemon-reload"
    here = commands.replace("/etc", str(node.layout.of("/etc")))
    subprocess.run(["sh", "-ec", here], check=True)
    node.reload()
    assert "no-restart" not in kinds(examine(host=node.host))


@pytest.mark.parametrize("is_read", [True, False])
def test_an_edited_drop_in_has_one_hint(node: Node, is_read: bool) -> None:
    """A reload alone would leave systemd without the lines that were removed from the drop-in."""
    name = f"{UNITS}/{TEMPLATE}.d/zz-hostrouting.conf"
    node.write(name, "[Service]\n")
    if is_read:
        node.reload()
    found = [
        each
        for each in examine(host=node.host).findings
        if each.kind not in ("not-examined", "no-restart")
    ]
    assert sorted(each.kind for each in found) == [
        "file-differs",
        "gate-overridden" if is_read else "not-reloaded",
    ]
    manifest = node.layout.manifest
    assert {each.hint for each in found} == {
        f"hostrouting plan {manifest} shows the difference, hostrouting apply {manifest} fixes it"
    }


def test_a_held_start_is_reported_with_its_time(node: Node) -> None:
    for began, is_told in (("1", True), (str(10**18), False)):
        node.units.properties[MACHINE] = {
            "SubState": "condition",
            "InactiveExitTimestampMonotonic": began,
        }
        found = [each for each in examine(host=node.host).findings if each.kind == "held"]
        assert [each.subject for each in found] == [MACHINE] * is_told
        assert all(f"journalctl -u {MACHINE}" in each.hint for each in found)


def test_a_running_trial_is_reported_without_an_installation_too(host: Host) -> None:
    phases.run(TryRoutes(config(SHADOWED, keep=KEEP), 600, host=host))
    found = {each.kind: each for each in examine(host=host).findings}
    assert found.keys() == {"trial-stands", "not-installed"}
    assert "hostrouting revert" in found["trial-stands"].hint
    host.layout.trial.write_text(json.dumps(times_of(-2)))
    assert {each.kind for each in examine(host=host).findings} == {"trial-overdue", "not-installed"}


def test_during_a_trial_the_next_start_has_no_verdict(node: Node) -> None:
    """A start ends the trial first, so the doctor can't predict the verdict."""
    phases.run(TryRoutes(config(SHADOWED, keep=KEEP), 600, host=node.host))
    (finding,) = (
        each for each in examine(host=node.host).findings if each.kind in ("unjudged", "shadowed")
    )
    assert (finding.kind, finding.severity) == ("unjudged", Severity.UNKNOWN)
    assert "a start ends the trial of routes first" in finding.message


def test_during_a_trial_no_hint_ends_it_by_an_apply(node: Node) -> None:
    """The file may have the tried config: an apply would make it permanent."""
    tried = config("172.16.2.0/24", mode="WARN", keep=KEEP)
    phases.run(TryRoutes(tried, 600, host=node.host))
    node.remove(ROUTES)
    found = examine(tried, host=node.host, config_name="").findings
    assert {"route-missing", "another-config", "file-missing"} <= {each.kind for each in found}
    assert not [each for each in found if "hostrouting apply" in each.hint]
    (missing,) = (each for each in found if each.kind == "route-missing")
    assert missing.hint == f"{TRIAL_HINT}; then: hostrouting doctor"


def test_risks_are_listed_and_count_with_strict_only(node: Node, capsys: Any) -> None:
    never_restart(node)
    assert cli.main(["doctor"], host=node.host) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is broken; 1 may break it later"
    assert cli.main(["doctor", "--strict"], host=node.host) == 1
    node.link(f"{UNITS}/{MACHINE}.d/zz-hostrouting.conf", "/dev/null")
    assert cli.main(["doctor"], host=node.host) == 1


def test_a_named_config_must_exist(node: Node, capsys: Any) -> None:
    node.write(f"{CONFIG_DIR}/config.json", json.dumps(config("172.16.9.0/24").to_mapping()))
    assert cli.main(["doctor"], host=node.host) == 1
    out = capsys.readouterr().out
    assert "CONFIG asks for something else" in out
    assert "do: hostrouting apply\n" not in out
    path = node.layout.of("/my config.json")
    path.write_text(node.read(f"{CONFIG_DIR}/config.json"))
    assert cli.main(["doctor", str(path)], host=node.host) == 1
    assert f"hostrouting apply '{path}'" in capsys.readouterr().out
    assert cli.main(["doctor", str(node.layout.of("/none.json"))], host=node.host) == 78


def test_a_finding_names_the_template_and_no_missing_instance(node: Node) -> None:
    prefix, suffix = TEMPLATE.split("@")
    bare = FakeSystemd(node.layout, running=[f"{prefix}@hostrouting-probe{suffix}", MACHINE])
    node.remove(f"{UNITS}/{TEMPLATE}.d/restart.conf")
    host = Host(routes=node.kernel, units=bare, layout=node.layout)
    node.write(f"{UNITS}/{TEMPLATE}.d/zzz.conf", "[Service]\nExecStartPre=\nRootDirectory=/srv\n")
    bare.reload()
    subjects = {(finding.kind, finding.subject) for finding in examine(host=host).findings}
    assert {
        (kind, each) for kind in ("gate-overridden", "own-files") for each in (TEMPLATE, MACHINE)
    } <= subjects
    # One drop-in, of the template, is enough.
    assert [each for kind, each in subjects if kind == "no-restart"] == [TEMPLATE]


# --- cycles ---------------------------------------------------------------------------------------


def test_only_a_shortest_cycle_through_the_units_is_found() -> None:
    after = {"a": ["b", "x"], "b": ["c"], "c": ["a"], "x": ["a"], "p": ["q"], "q": ["p"]}
    assert find_cycle(after, ["a"]) == ("a", "x")
    assert find_cycle(after, ["b"]) == ("b", "c", "a")
    assert find_cycle({"a": ["p"], "p": ["q"], "q": ["p"]}, ["a"]) == ()
    assert find_cycle({"a": ["a"]}, ["a"]) == ("a",)
    assert find_cycle({}, ["a"]) == ()


# --- IPv6 -----------------------------------------------------------------------------------------


def found(
    root: Path, cidr: str, sysctls: dict[str, str], *defaults: str
) -> dict[str, DoctorFinding]:
    """Return the findings on a host whose uplink is eth0, by their kinds."""
    layout, snapshot = Layout(root), snapshot_of(*defaults)
    layout.units.mkdir(parents=True)
    config = Config.from_mapping(
        {"hostRouting": {"routeOverlap": {"expectedCidrs": [cidr]}, "waitSeconds": 0}}
    )
    node = Host(
        model_of(snapshot.known(Family.IPV4)),
        FakeSystemd(layout),
        layout,
        model_of(snapshot.known(Family.IPV6)),
    )
    phases.run(Configure(config, host=node))
    for name, value in sysctls.items():
        write_file(layout.of(f"/proc/sys/net/ipv6/conf/{name}"), f"{value}\n")
    return {finding.kind: finding for finding in examine(host=node).findings}


@pytest.mark.parametrize(
    ("cidr", "accept_ra", "forwarding", "default", "is_risk"),
    [
        ("fd00:10::/48", "1", "1", DEFAULT, True),
        ("fd00:10::/48", "2", "1", DEFAULT, False),
        ("fd00:10::/48", "1", "0", DEFAULT, False),
        ("fd00:10::/48", "1", "1", DEFAULT.replace("proto ra", "proto static"), False),
        ("10.96.0.0/12", "1", "1", DEFAULT, False),
    ],
)
def test_a_default_route_that_forwarding_loses_is_a_risk(
    tmp_path: Path, cidr: str, accept_ra: str, forwarding: str, default: str, *, is_risk: bool
) -> None:
    sysctls = {"eth0/accept_ra": accept_ra, "eth0/forwarding": forwarding}
    sysctls |= {"rail0/accept_ra": "1", "rail0/forwarding": "1"}
    findings = found(tmp_path, cidr, sysctls, default)
    assert ("accept-ra" in findings) is is_risk
    if is_risk:
        finding = findings["accept-ra"]
        assert (finding.subject, str(finding.severity)) == ("eth0", "risk")
        assert finding.hint.startswith("sysctl -w net/ipv6/conf/eth0/accept_ra=2,")


@pytest.mark.parametrize(
    ("defaults", "manager", "is_risk"),
    [
        ((), "", True),
        ((), "ADMIN_STATE=configured", False),
        ((DEFAULT,), "", False),
        ((DEFAULT.replace("eth0", "rail0"),), "", True),
    ],
)
def test_an_uplink_that_ignores_advertisements_is_a_risk(
    tmp_path: Path, defaults: tuple[str, ...], manager: str, *, is_risk: bool
) -> None:
    write_file(tmp_path / "run/systemd/netif/links/2", f"{manager}\n")
    sysctls = {
        f"{dev}/{name}": "0" for dev in ("eth0", "rail0") for name in ("accept_ra", "forwarding")
    }
    findings = found(tmp_path, "fd00:10::/48", sysctls, *defaults)
    assert ("accept-ra" in findings) is is_risk
    if is_risk:
        assert findings["accept-ra"].subject == "eth0"
        assert findings["accept-ra"].hint.startswith("sysctl -w net/ipv6/conf/eth0/accept_ra=1,")


def test_ignored_advertisements_are_found_before_an_installation(tmp_path: Path) -> None:
    layout, snapshot = Layout(tmp_path), snapshot_of()
    node = Host(
        model_of(snapshot.known(Family.IPV4)),
        FakeSystemd(layout),
        layout,
        model_of(snapshot.known(Family.IPV6)),
    )
    write_file(layout.of("/proc/sys/net/ipv6/conf/eth0/accept_ra"), "0\n")
    for cidr, kinds in (("fd00:10::/48", {"accept-ra"}), ("10.96.0.0/12", set())):
        config = Config.from_mapping({"hostRouting": {"routeOverlap": {"expectedCidrs": [cidr]}}})
        assert {each.kind for each in examine(config, host=node).findings} & {"accept-ra"} == kinds


@pytest.mark.parametrize(
    ("link", "is_found"),
    [
        (Link(2, "eth0"), True),
        (Link(2, "bond0", kind="bond"), True),
        (Link(2, "eth0", is_up=False), False),
        (Link(2, "eth0", master="bond0"), False),
        (Link(2, "cali1", kind="veth"), False),
        (Link(1, "lo"), False),
    ],
)
def test_any_uplink_may_be_behind_a_router_if_none_is_known(
    tmp_path: Path, link: Link, *, is_found: bool
) -> None:
    layout = Layout(tmp_path)
    write_file(layout.of(f"/proc/sys/net/ipv6/conf/{link.name}/accept_ra"), "0\n")
    assert [each.dev for each in ignored_advertisements(layout, [link], None)] == (
        [link.name] if is_found else []
    )


# --- each check has a fault -----------------------------------------------------------------------


# For each check, a fault of FAULTS that it finds, or a test that plants one.
PLANTED: dict[str, str | Callable[..., None]] = {
    "verdict": "shadowed",
    "held": test_a_held_start_is_reported_with_its_time,
    "trial": test_a_running_trial_is_reported_without_an_installation_too,
    "installed": test_without_an_installation_only_that_is_found,
    "consumer": "consumer gone",
    "files": "edited script",
    "modes": "folder behind a link",
    "access": test_only_a_held_lock_is_found,
    "gate": "gate masked",
    "break-glass": "break-glass file",
    "sight": "a separate network",
    "units": "unit masked",
    "ordering": "ordering cycle",
    "ties": test_each_tie_is_found_with_its_cost,
    "restart": "no Restart=",
    "tools": "no awk",
    "watcher": test_unwritable_metrics_are_found_with_their_folder,
    "leftovers": "an old gate",
    "agents": "the reference's agent",
    "routes": "route gone",
    "networkd": "networkd",
    "networkmanager": "NetworkManager",
    "cloud-init": "cloud-init",
    "advertisements": test_an_uplink_that_ignores_advertisements_is_a_risk,
}


def test_each_check_finds_a_planted_fault() -> None:
    faults = {fault for fault in PLANTED.values() if isinstance(fault, str)}
    assert faults <= FAULTS.keys()
    missing = "PLANTED needs a fault, or the test that plants one, for each of CHECKS"
    assert PLANTED.keys() == {check.name for check in CHECKS}, missing
