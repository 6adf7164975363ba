"""The doctor finds each planted fault, names its remedy, changes nothing, and is silent on a healthy host."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from shadowed import shadowed_kernel

import phases
from hostrouting import Config, Configure, Host, Layout, RemoveHostRouting, UnitError, cli
from hostrouting.boot.gate import seconds_of
from hostrouting.boot.locks import locked
from hostrouting.cli.layout import page_text
from hostrouting.cli.pages import doctor_page
from hostrouting.doctor._gate import find_cycle
from hostrouting.doctor.examination import Severity
from hostrouting.doctor.examine import CHECKS, examine
from hostrouting.model.parsing import parse_cidr
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Route, Table
from hostrouting.tasks.trial import TryRoutes
from hostrouting.testing import FakeKernel, FakeSystemd
from phases import CancelScope
from phases.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostrouting.doctor.examine import DoctorReport

TEMPLATE, MACHINE = "systemd-nspawn@.service", "systemd-nspawn@kube1.service"
UNITS, CONFIG_DIR, STATE_DIR = "etc/systemd/system", "etc/aks-flex-node", "etc/hostrouting"
ROUTES, CHECK = f"{CONFIG_DIR}/static-routes.sh", f"{CONFIG_DIR}/check-route-overlap.sh"


def config(*destinations: str, mode: str = "STRICT", **more: Any) -> Config:
    routes = [{"destination": each} for each in destinations or ("172.16.1.0/24",)]
    overlap = {"expectedCidrs": ["172.16.1.0/24"], "mode": mode}
    section = {"staticRoutes": {"enabled": True, "routes": routes}, "routeOverlap": overlap, "waitSeconds": 0}
    return Config.from_mapping({"hostRouting": section | more})


@attrs.frozen
class Node:
    """A host on which faults are planted."""

    kernel: FakeKernel
    units: FakeSystemd
    layout: Layout

    @property
    def host(self) -> Host:
        return Host(routes=self.kernel, units=self.units, layout=self.layout)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        file = self.layout.of(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def link(self, path: str, target: str) -> None:
        file = self.layout.of(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(target)

    def read(self, path: str) -> str:
        return self.layout.of(path).read_text()

    def remove(self, path: str) -> None:
        self.layout.of(path).unlink()

    def reload(self) -> None:
        self.units.reload()

    def add_routes(self, *destinations: str, protocol: int = 217, table: int = Table.MAIN) -> None:
        hops = (NextHop("eth0", IPv4Address("10.1.0.1")),)
        routes = [Route(parse_cidr(to), hops, protocol=protocol, table=table) for to in destinations]
        assert not self.kernel.add(routes)

    def delete_ours(self) -> None:
        assert not self.kernel.delete([route for route in self.kernel.routes() if route.is_ours])

    def manage(self, service: str, folder: str, text: str) -> None:
        """A network service runs and manages every interface."""
        self.units.restart(service)
        for link in self.kernel.links():
            self.write(f"{folder}/{link.index}", text)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A host with everything installed, of which each test gets a copy."""
    kernel = shadowed_kernel()
    layout = Layout(tmp_path_factory.mktemp("healthy"))
    layout.units.mkdir(parents=True)
    node = Node(kernel, FakeSystemd(layout, running=[MACHINE]), layout)
    node.write("/bin/bash", "#!/bin/bash\necho 5.2\n", 0o755)
    for tool in ("ip", "awk", "flock", "timeout"):
        node.write(f"/usr/bin/{tool}", "", 0o755)
    node.write("/proc/cmdline", "quiet splash\n")
    node.write(f"{UNITS}/{TEMPLATE}.d/restart.conf", "[Service]\nRestart=on-failure\n")
    phases.run(Configure(config(), host=node.host))
    return node


@pytest.fixture
def node(healthy: Node, tmp_path: Path) -> Node:
    kernel = shadowed_kernel()
    assert not kernel.add([route for route in healthy.kernel.routes() if route.is_ours])
    shutil.copytree(healthy.layout.root, tmp_path, symlinks=True, dirs_exist_ok=True)
    units = FakeSystemd(Layout(tmp_path), running=[MACHINE])
    units.enabled, units.active = set(healthy.units.enabled), set(healthy.units.active)
    return Node(kernel, units, Layout(tmp_path))


def kinds(report: DoctorReport) -> list[str]:
    return [fault.kind for fault in report.faults]


def everything(node: Node) -> object:
    paths = sorted(node.layout.root.rglob("*"))
    files = {path: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in paths if path.is_file()}
    return paths, files, node.kernel.routes(), node.units.enabled, node.units.reloads


@pytest.mark.parametrize("given", [None, config()], ids=["installed", "config"])
def test_a_healthy_host_has_no_finding_and_nothing_is_changed(node: Node, given: Config | None) -> None:
    before = everything(node)
    report = examine(given, host=node.host)
    assert report.faults == ()
    assert [each.name for each in report.found] == [each.name for each in CHECKS]
    assert page_text(doctor_page(report), None).endswith("nothing was found: the gate holds\x1b[0m")
    assert everything(node) == before


# --- the planted faults --------------------------------------------------------------------------------------------


def edit_a_script(node: Node) -> None:
    node.write(ROUTES, node.read(ROUTES).replace("readonly GATE_SECONDS=5", "readonly GATE_SECONDS=0"), 0o755)


def open_a_script(node: Node) -> None:
    node.write(CHECK, "#!/bin/sh\nexit 0\n", 0o755)


def override_the_gate(node: Node) -> None:
    node.write(f"{UNITS}/{MACHINE}.d/zzz-override.conf", "[Service]\nExecStartPre=\n")
    node.reload()


def forget_to_reload(node: Node) -> None:
    gates = {gate: gate.read_text() for gate in node.layout.gates(TEMPLATE)}
    for gate in gates:
        gate.unlink()
    node.reload()
    for gate, text in gates.items():
        gate.write_text(text)


def break_the_ordering(node: Node) -> None:
    node.write(
        f"{UNITS}/static-routes.service", node.read(f"{UNITS}/static-routes.service") + f"[Unit]\nAfter={MACHINE}\n"
    )


def set_in(section: str, setting: str, *, name: str = "x", reload: bool = True) -> Callable[[Node], None]:
    """What an operator sets in a drop-in of the machine."""

    def plant(node: Node) -> None:
        node.write(f"{UNITS}/{MACHINE}.d/{name}.conf", f"[{section}]\n{setting}\n")
        if reload:
            node.reload()

    return plant


def override_below_usr(node: Node) -> None:
    node.write(f"/usr/lib/systemd/system/{MACHINE}.d/zzz.conf", "[Service]\nExecStartPre=\n")
    node.reload()


def delete_the_default(node: Node) -> None:
    assert not node.kernel.delete([route for route in node.kernel.routes() if route.destination.prefixlen == 0])


def add_a_default(node: Node) -> None:
    node.kernel.add_link("eth1")
    node.kernel.add_address("eth1", "10.9.0.4/24")
    other = Route(DEFAULT_DESTINATION, (NextHop("eth1", IPv4Address("10.9.0.1")),), metric=500)
    assert not node.kernel.add([other])


def never_restart(node: Node) -> None:
    node.remove(f"{UNITS}/{TEMPLATE}.d/restart.conf")
    node.reload()


def give_a_network_of_its_own(node: Node) -> None:
    node.write(f"{UNITS}/{MACHINE}.d/private.conf", "[Service]\nPrivateNetwork=yes\n")
    node.reload()


def put_the_scripts_behind_a_link(node: Node) -> None:
    """Whoever may write /srv/open can put another folder in the place of the one that the link names."""
    folder = node.layout.of("/srv/open")
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    node.layout.of(CONFIG_DIR).rename(folder / "config")
    node.link(CONFIG_DIR, "../srv/open/config")


def mask_the_gate(node: Node) -> None:
    node.link(f"/etc/systemd/system.control/{TEMPLATE}.d/zz-hostrouting.conf", "/dev/null")
    node.reload()


def flush_by_networkd(node: Node) -> None:
    node.manage("systemd-networkd.service", "/run/systemd/netif/links", "ADMIN_STATE=configured\n")


def flush_by_network_manager(node: Node) -> None:
    node.manage("NetworkManager.service", "/run/NetworkManager/devices", "[device]\nmanaged=true\n")


def install_another_consumer(node: Node) -> None:
    node.write(f"{UNITS}/kubelet.service.d/10-hostrouting.conf", "[Service]\nExecStartPre=/gone\n")


WATCH = "[Service]\nType=notify\nExecStart=/opt/venv/bin/python -m hostrouting watch /etc/hostrouting/installed.json\n"

FAULTS: dict[str, tuple[Callable[[Node], object], str, str, str]] = {
    "edited script": (edit_a_script, "file-differs", ROUTES, "hostrouting apply"),
    "script that always admits": (open_a_script, "file-differs", CHECK, "hostrouting apply"),
    "script not executable": (lambda n: n.layout.of(CHECK).chmod(0o644), "file-mode", CHECK, "chmod 0755"),
    "script others may write": (lambda n: n.layout.of(CHECK).chmod(0o777), "file-mode", CHECK, f"chmod go-w /{CHECK}"),
    "folder others may write": (
        lambda n: n.layout.of(CONFIG_DIR).chmod(0o777),
        "file-mode",
        f"/{CONFIG_DIR}",
        f"chmod go-w /{CONFIG_DIR}",
    ),
    "drop-in's folder others may write": (
        lambda n: n.layout.gates(TEMPLATE)[-1].parent.chmod(0o777),
        "file-mode",
        f"/{UNITS}/{TEMPLATE}.d",
        "chmod go-w",
    ),
    "folder of markers others may write": (
        lambda n: n.layout.run_dir.chmod(0o777),
        "file-mode",
        "/run/aks-flex-node",
        "chmod go-w",
    ),
    "folder behind a link others may write": (
        put_the_scripts_behind_a_link,
        "file-mode",
        "/srv/open",
        "chmod go-w /srv/open",
    ),
    "shadowed": (lambda n: n.delete_ours(), "shadowed", TEMPLATE, "hostrouting fix"),
    "no default route": (delete_the_default, "unjudged", TEMPLATE, "hostrouting check"),
    "two default routes": (add_a_default, "contested", TEMPLATE, "hostRouting.uplinks"),
    "consumer gone": (lambda n: setattr(n.units, "_running", ()), "no-consumer", TEMPLATE, "as consumer in CONFIG"),
    "the host's own kubelet": (
        lambda n: n.link(f"{UNITS}/multi-user.target.wants/kubelet.service", "../kubelet.service"),
        "not-held",
        "kubelet.service",
        "set hostRouting.consumer in CONFIG to kubelet.service",
    ),
    "machine masked": (
        lambda n: n.units.properties.update({MACHINE: {"LoadState": "masked"}}),
        "masked",
        MACHINE,
        f"systemctl unmask {MACHINE}",
    ),
    "success by the gate's status": (
        set_in("Service", "SuccessExitStatus=133 255"),
        "gate-disobeyed",
        MACHINE,
        f"systemctl cat {MACHINE}",
    ),
    "no time for the gate": (
        set_in("Service", "TimeoutStartSec=2s"),
        "gate-disobeyed",
        MACHINE,
        f"systemctl cat {MACHINE}",
    ),
    "a mount over a script": (
        set_in("Service", f"BindPaths=/bin/true:/{CHECK}:rbind"),
        "own-files",
        MACHINE,
        "take it away",
    ),
    "a mount over a program": (
        set_in("Service", "BindReadOnlyPaths=/bin/true:/usr/bin/timeout"),
        "own-files",
        MACHINE,
        "take it away",
    ),
    "a mount over the kernel's arguments": (
        set_in("Service", "BindReadOnlyPaths=/opt/cmdline:/proc/cmdline"),
        "own-files",
        MACHINE,
        "take it away",
    ),
    "a folder that goes with the machine": (
        set_in("Service", "RuntimeDirectory=aks-flex-node"),
        "gate-disobeyed",
        MACHINE,
        f"systemctl cat {MACHINE}",
    ),
    "a mount over libraries": (set_in("Service", "TemporaryFileSystem=/usr/lib"), "own-files", MACHINE, "take it away"),
    "a mount over the lock": (set_in("Service", "TemporaryFileSystem=/run:ro"), "own-files", MACHINE, "take it away"),
    "a root of its own": (
        set_in("Service", "RootDirectory=/var/lib/machines"),
        "own-files",
        MACHINE,
        "take it away",
    ),
    "an override that isn't read yet": (
        set_in("Service", "ExecStartPre=", name="zzz", reload=False),
        "not-reloaded",
        MACHINE,
        "systemctl daemon-reload; hostrouting doctor",
    ),
    "an override for all services that isn't read yet": (
        lambda n: n.write(f"{UNITS}/service.d/zzz.conf", "[Service]\nExecStartPre=\n"),
        "not-reloaded",
        MACHINE,
        "systemctl daemon-reload; hostrouting doctor",
    ),
    "all starts have one name": (
        set_in("Service", "Environment=A=1 INVOCATION_ID=0123"),
        "gate-disobeyed",
        MACHINE,
        f"systemctl cat {MACHINE}",
    ),
    "a start has no name": (
        set_in("Service", "UnsetEnvironment=INVOCATION_ID"),
        "gate-disobeyed",
        MACHINE,
        f"systemctl cat {MACHINE}",
    ),
    "gate masked": (
        mask_the_gate,
        "gate-overridden",
        MACHINE,
        f"rm /etc/systemd/system.control/{TEMPLATE}.d/zz-hostrouting.conf",
    ),
    "gate masked and not read yet": (
        lambda n: n.link(f"{UNITS}/{MACHINE}.d/zz-hostrouting.conf", "/dev/null"),
        "not-reloaded",
        MACHINE,
        "systemctl daemon-reload; hostrouting doctor",
    ),
    "an override below /usr/lib": (
        override_below_usr,
        "gate-overridden",
        MACHINE,
        "out of /usr/lib/systemd/system/systemd-nspawn@kube1.service.d/zzz.conf",
    ),
    "another Restart=": (set_in("Service", "Restart=on-abnormal"), "no-restart", MACHINE, "Restart=on-failure"),
    "no restart after the gate's status": (
        set_in("Service", "RestartPreventExitStatus=1 255"),
        "no-restart",
        MACHINE,
        "without 255",
    ),
    "two starts an hour": (
        set_in("Unit", "StartLimitIntervalSec=1h\nStartLimitBurst=2"),
        "no-restart",
        MACHINE,
        "StartLimitIntervalSec=0",
    ),
    "requires a oneshot": (
        set_in("Unit", "Requires=a.service static-routes.service"),
        "tied",
        MACHINE,
        f"out of what systemctl cat {MACHINE} shows",
    ),
    "is part of a oneshot": (
        set_in("Unit", "PartOf=static-routes.service"),
        "tied",
        MACHINE,
        f"out of what systemctl cat {MACHINE} shows",
    ),
    "is stopped with a oneshot": (
        set_in("Unit", "StopPropagatedFrom=check-route-overlap.service"),
        "tied",
        MACHINE,
        f"out of what systemctl cat {MACHINE} shows",
    ),
    "is stopped by a oneshot's start": (
        set_in("Unit", "Conflicts=static-routes.service"),
        "tied",
        MACHINE,
        f"out of what systemctl cat {MACHINE} shows",
    ),
    "oneshot overridden": (
        lambda n: n.units.properties.update({"static-routes.service": {"DropInPaths": "/x.conf"}}),
        "overridden",
        "static-routes.service",
        "systemctl cat static-routes.service",
    ),
    "bash is another shell": (
        lambda n: n.write("/bin/bash", "#!/bin/sh\necho\n", 0o755),
        "tool-missing",
        "bash",
        "install bash",
    ),
    "flock can't be run": (lambda n: n.layout.of("/usr/bin/flock").chmod(0o644), "tool-missing", "flock", "util-linux"),
    "script gone": (lambda n: n.remove(ROUTES), "file-missing", ROUTES, "hostrouting apply"),
    "unit gone": (
        lambda n: n.remove(f"{UNITS}/static-routes.service"),
        "file-missing",
        "static-routes.service",
        "hostrouting apply",
    ),
    "unit masked": (
        lambda n: n.link(f"{UNITS}/static-routes.service", "/dev/null"),
        "masked",
        "static-routes.service",
        "systemctl unmask static-routes.service",
    ),
    "unit not enabled": (
        lambda n: n.units.disable("check-route-overlap.service"),
        "not-enabled",
        "check-route-overlap.service",
        "systemctl enable check-route-overlap.service",
    ),
    "overridden ExecStartPre=": (
        override_the_gate,
        "gate-overridden",
        MACHINE,
        f"ExecStartPre= out of /{UNITS}/{MACHINE}.d/zzz-override.conf",
    ),
    "systemd not reloaded": (forget_to_reload, "gate-overridden", MACHINE, "systemctl daemon-reload"),
    "not ordered": (forget_to_reload, "not-ordered", MACHINE, "systemctl daemon-reload"),
    "ordering cycle": (
        break_the_ordering,
        "ordering-cycle",
        "static-routes.service",
        "take one After= or Before= away",
    ),
    "the reference's link": (
        lambda n: n.link(
            f"{UNITS}/{TEMPLATE}.requires/static-routes.service", "/etc/systemd/system/static-routes.service"
        ),
        "reference-link",
        f"{TEMPLATE}.requires/static-routes.service",
        "rm /etc/systemd/system",
    ),
    "a gate of before": (install_another_consumer, "stale-gate", "kubelet.service.d/10-hostrouting.conf", "rm /etc"),
    "the reference's agent": (
        lambda n: n.write(
            f"{UNITS}/aks-flex-node-agent.service", "[Service]\nExecStart=/usr/local/bin/aks-flex-node agent\n"
        ),
        "another-agent",
        "aks-flex-node-agent.service",
        "leave hostRouting out",
    ),
    "the reference's other link": (
        lambda n: n.link(
            f"{UNITS}/{TEMPLATE}.wants/static-routes.service",
            "/etc/systemd/system/static-routes.service",
        ),
        "reference-link",
        f"{TEMPLATE}.wants/static-routes.service",
        "rm /etc/systemd/system",
    ),
    "routes that wait": (
        lambda n: n.kernel.delete([route for route in n.kernel.routes() if route.destination.prefixlen == 0]),
        "route-waits",
        "static routes",
        "bring it up",
    ),
    "route gone": (lambda n: n.delete_ours(), "route-missing", "172.16.1.0/24", "hostrouting apply"),
    "route beaten": (
        lambda n: n.add_routes("172.16.1.0/25", "172.16.1.128/25", protocol=4),
        "route-fails",
        "static routes",
        "ip",
    ),
    "networkd": (
        flush_by_networkd,
        "networkd-flushes",
        "eth0",
        "  [Route]\n  Destination=172.16.1.0/24\n  Gateway=10.1.0.1",
    ),
    "NetworkManager": (
        flush_by_network_manager,
        "network-manager-flushes",
        "eth0",
        "+ipv4.routes '172.16.1.0/24 GATEWAY'",
    ),
    "cloud-init": (
        lambda n: n.write("/etc/udev/rules.d/90-cloud-init-hook-hotplug.rules", "ACTION==add\n"),
        "cloud-init-hotplug",
        "/etc/udev/rules.d/90-cloud-init-hook-hotplug.rules",
        "updates.network.when",
    ),
    "no Restart=": (
        never_restart,
        "no-restart",
        MACHINE,
        "[Service] Restart=on-failure",
    ),
    "a network of its own": (
        give_a_network_of_its_own,
        "own-network",
        MACHINE,
        "take it away",
    ),
    "break-glass file": (
        lambda n: n.write(f"{STATE_DIR}/gate.off", ""),
        "gate-off",
        "gate.off",
        "rm /etc/hostrouting/gate.off",
    ),
    "break-glass argument": (
        lambda n: n.write("/proc/cmdline", "quiet hostrouting.gate=off\n"),
        "gate-off",
        "/proc/cmdline",
        "boot loader",
    ),
    "no awk": (lambda n: n.remove("/usr/bin/awk"), "tool-missing", "awk", "install mawk"),
    "manifest broken": (
        lambda n: n.write(f"{STATE_DIR}/installed.json", "{"),
        "not-examined",
        "installed",
        "then: hostrouting doctor",
    ),
}

# Of the others, by kind or by fault; what isn't here is broken now.
SEVERITIES = dict.fromkeys(
    (
        *(
            "another-agent",
            "cloud-init-hotplug",
            "contested",
            "masked",
            "network-manager-flushes",
            "networkd-flushes",
            "no-restart",
        ),
        *("not-enabled", "not-held", "not-ordered", "ordering-cycle", "overridden", "stale-gate", "tied"),
        "the reference's other link",
    ),
    Severity.RISK,
) | dict.fromkeys(("not-examined", "not-reloaded"), Severity.UNKNOWN)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found_with_its_remedy_and_nothing_is_changed(node: Node, fault: str) -> None:
    plant, kind, subject, remedy = FAULTS[fault]
    plant(node)
    before = everything(node)
    report = examine(host=node.host)
    found = [each for each in report.faults if each.kind == kind and subject in each.subject]
    assert found, report.faults
    assert remedy in found[0].remedy
    assert found[0].severity is SEVERITIES.get(fault, SEVERITIES.get(kind, Severity.BROKEN))
    assert everything(node) == before
    assert found[0].subject in page_text(doctor_page(report), None)
    json.dumps(report.to_json())


def test_what_was_installed_by_another_python_or_into_an_image_is_as_rendered(node: Node) -> None:
    text = node.read(CHECK)
    for python in ("/opt/venv/bin/python", "/usr/bin/python3"):
        node.write(CHECK, re.sub("(?m)^readonly PYTHON=.*$", f"readonly PYTHON={python}", text), 0o755)
        assert node.read(CHECK) != text
        assert kinds(examine(host=node.host)) == []


def test_with_the_config_a_script_of_another_config_is_told_from_an_edited_one(node: Node) -> None:
    other = [each for each in examine(config("172.16.2.0/24"), host=node.host).faults if each.kind == "another-config"]
    assert [each.message for each in other] == ["static-routes: CONFIG asks for something else"]
    edit_a_script(node)
    (edited,) = [each for each in examine(config(), host=node.host).faults if each.kind == "file-differs"]
    assert "edited" in edited.message


def test_a_config_that_asks_for_more_or_for_another_consumer_is_a_finding(node: Node) -> None:
    assert "another-config" in kinds(examine(config(consumer="kubelet.service"), host=node.host))
    assert "another-config" in kinds(examine(config(routeOverlap={}), host=node.host))


def test_nothing_installed_is_a_finding_and_only_what_can_be_is_examined(node: Node) -> None:
    phases.run(RemoveHostRouting(host=node.host))
    report = examine(host=node.host)
    assert kinds(report) == ["not-installed"]
    assert "gate" not in [each.name for each in report.found]
    assert kinds(examine(Config(), host=node.host)) == ["not-installed"]


def test_a_watcher_that_no_installation_knows_of_is_found(node: Node) -> None:
    watched = attrs.evolve(config(), watch={"enabled": True})
    phases.run(Configure(watched, host=node.host))
    node.layout.manifest.unlink()
    found = {
        each.subject: each.remedy for each in examine(config(), host=node.host).faults if each.kind == "stale-file"
    }
    watch = found[f"/{UNITS}/hostrouting-watch.service"]
    assert watch.startswith("systemctl disable --now hostrouting-watch.service; rm ")
    assert found[f"/{UNITS}/static-routes.service"].startswith("systemctl disable static-routes.service; rm ")


def test_files_left_behind_by_the_reference_are_found_without_a_manifest(node: Node) -> None:
    node.remove(f"{STATE_DIR}/installed.json")
    assert {"stale-file", "stale-gate"} <= set(kinds(examine(host=node.host)))


def test_with_the_watcher_running_nobody_takes_a_route_away_for_good(node: Node) -> None:
    flush_by_networkd(node)
    flush_by_network_manager(node)
    node.units.restart("hostrouting-watch.service")
    assert kinds(examine(host=node.host)) == []


def test_a_network_service_that_manages_other_interfaces_or_does_not_run_is_fine(node: Node) -> None:
    node.manage("systemd-networkd.service", "/run/systemd/netif/links", "ADMIN_STATE=unmanaged\n")
    node.manage("NetworkManager.service", "/run/NetworkManager/devices", "[device]\nmanaged=false\n")
    assert kinds(examine(host=node.host)) == []


def test_the_watcher_may_run_by_another_python_but_it_must_run(node: Node) -> None:
    watched = config(watch={"enabled": True})
    phases.run(Configure(watched, host=node.host))
    unit = "hostrouting-watch.service"
    own, text = f'"{sys.executable}"', node.read(f"{UNITS}/{unit}")
    assert own in text
    node.write(f"{UNITS}/{unit}", text.replace(own, "/opt/venv/bin/python"))
    assert kinds(examine(watched, host=node.host)) == []
    node.units.stop(unit)
    assert kinds(examine(watched, host=node.host)) == ["watcher-down"]
    node.units.properties[unit] = {"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "1"}
    assert kinds(examine(watched, host=node.host)) == ["watcher-fails"]
    node.units.properties[unit] = {"ActiveState": "active", "SubState": "running", "NRestarts": "1"}
    assert kinds(examine(watched, host=node.host)) == []
    node.units.properties[unit]["NRestarts"] = "3"
    assert kinds(examine(watched, host=node.host)) == ["watcher-fails"]
    node.write(f"{UNITS}/{unit}", text.replace("Restart=always", "Restart=no"))
    assert "file-differs" in kinds(examine(watched, host=node.host))


def test_metrics_that_can_not_be_written_are_found_and_the_folder_is_named(node: Node) -> None:
    watched = config(watch={"enabled": True, "textfile": "/var/lib/metrics/hostrouting.prom"})
    phases.run(Configure(watched, host=node.host))

    def found() -> list[tuple[str, str]]:
        return [(each.kind, each.subject) for each in examine(watched, host=node.host).faults]

    assert found() == [("textfile", "/var/lib/metrics")]
    node.layout.of("/var/lib/metrics").mkdir(parents=True)
    assert found() == [("textfile", "/var/lib/metrics/hostrouting.prom")]
    node.write("/var/lib/metrics/hostrouting.prom", "")
    assert found() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("path", [CHECK, CONFIG_DIR, "run/aks-flex-node", f"{UNITS}/{TEMPLATE}.d", "etc"])
def test_a_file_or_folder_of_somebody_else_is_found(node: Node, path: str) -> None:
    os.chown(node.layout.of(path), 65534, -1)
    (fault,) = examine(host=node.host).faults
    assert (fault.kind, fault.subject, fault.remedy) == ("file-owner", f"/{path}", f"chown root:root /{path}")


def test_a_lock_that_somebody_keeps_is_found_and_one_that_is_let_go_is_not(node: Node) -> None:
    def found() -> list[str]:
        return kinds(examine(host=node.host, scope=CancelScope(clock=FakeClock())))

    with locked(node.layout.lock, CancelScope()):
        assert found() == ["locked"]
    assert found() == []


def test_a_requirement_says_what_it_costs_and_apply_does_not_fail_for_it(node: Node) -> None:
    set_in("Unit", "Requires=static-routes.service")(node)
    (fault,) = examine(host=node.host).faults
    assert fault.severity is Severity.RISK
    for cost in ("stopping or restarting", "isn't tried again", "after hostrouting remove a start is refused"):
        assert cost in fault.message
    phases.run(Configure(config(mode="WARN"), host=node.host))


def test_a_link_by_which_the_machine_requires_a_oneshot_is_looked_for(node: Node) -> None:
    node.units.properties[MACHINE] = {"Requires": "static-routes.service"}
    (fault,) = examine(host=node.host).faults
    assert (fault.kind, fault.subject) == ("tied", MACHINE)
    assert "/run/systemd /usr/lib/systemd -path '*.requires/static-routes.service'" in fault.remedy


@pytest.mark.parametrize(
    "setting",
    [
        "SuccessExitStatus=133 3",
        "TimeoutStartSec=25s",
        "BindPaths=/srv:/opt",
        "BindPaths=/run /etc:/etc:rbind",
        "BindReadOnlyPaths=/usr:/usr",
        "Environment=MY_INVOCATION_ID=1 INVOCATION_IDS=2 A=INVOCATION_ID",
        "BindReadOnlyPaths=/opt/python:/usr/bin/kubelet",
        "BindPaths=/srv:/dev/shm",
        "RuntimeDirectory=kubelet",
        "TemporaryFileSystem=/var",
        "Restart=always",
        "RestartPreventExitStatus=1",
    ],
)
def test_settings_that_hurt_nothing_are_no_findings(node: Node, setting: str) -> None:
    set_in("Service", setting)(node)
    assert kinds(examine(host=node.host)) == []


def test_a_drop_in_that_only_masks_another_or_is_masked_itself_needs_no_reload(node: Node) -> None:
    node.link(f"{UNITS}/{MACHINE}.d/50-nothing.conf", "/dev/null")
    node.write(f"/usr/lib/systemd/system/{TEMPLATE}.d/zz-hostrouting.conf", "[Service]\nExecStartPre=\n")
    assert kinds(examine(host=node.host)) == []


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("infinity", float("inf")),
        ("2min 3.004000s", 123.004),
        ("100ms", 0.1),
        ("1h", 3600),
        ("90", 90),
        ("1month", 2629800),
    ],
)
def test_a_time_span_is_read_as_systemd_prints_it(span: str, seconds: float) -> None:
    assert seconds_of(span) == pytest.approx(seconds)


class Refusing(FakeSystemd):
    def show(self, unit: str, *names: str) -> dict[str, str]:
        raise UnitError("`systemctl show` failed: Connection timed out")


def test_an_examination_that_can_not_be_made_is_a_finding_and_the_others_go_on(node: Node) -> None:
    host = Host(routes=node.kernel, units=Refusing(node.layout, running=[MACHINE]), layout=node.layout)
    report = examine(host=host)
    assert report.worst is Severity.UNKNOWN
    assert {each.kind for each in report.faults} == {"not-examined"}
    assert all("Connection timed out" in each.message for each in report.faults)
    fine = [each.name for each, faults in report.found.items() if not faults]
    assert fine[:3] == ["verdict", "trial", "installed"]
    assert "couldn't be examined" in page_text(doctor_page(report), None).splitlines()[-1]


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_exits_with_0_or_1_and_speaks_json(node: Node, capsys: Any) -> None:
    assert cli.main(["doctor"], host=node.host) == 0
    assert "✓ gate " in capsys.readouterr().out
    node.write(f"{STATE_DIR}/gate.off", "")
    assert cli.main(["doctor", "--output", "json"], host=node.host) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "broken"
    (finding,) = document["findings"]
    assert finding == {
        "examination": "break-glass",
        "kind": "gate-off",
        "severity": "broken",
        "subject": "/etc/hostrouting/gate.off",
        "message": "as long as it is there every start is admitted unchecked",
        "remedy": "rm /etc/hostrouting/gate.off",
    }
    assert {
        "name": "gate",
        "ok": True,
        "fine": "every instance runs the gate before it starts, and obeys it",
    } in document["examinations"]


def test_an_open_gate_is_no_start_that_is_held_back(node: Node) -> None:
    node.delete_ours()
    node.write(f"{STATE_DIR}/gate.off", "")
    (fault,) = (each for each in examine(host=node.host).faults if each.kind == "shadowed")
    assert fault.message.startswith("its next start is let through unchecked, as the file /etc/hostrouting/gate.off")


def test_an_overridden_gate_is_no_start_that_is_held_back(node: Node) -> None:
    """The verdict and the gate's examination say the same."""
    node.delete_ours()
    node.write(f"{UNITS}/{MACHINE}.d/zzz.conf", "[Service]\nExecCondition=\nExecStartPre=\n")
    node.reload()
    (fault,) = (each for each in examine(host=node.host).faults if each.kind == "shadowed")
    assert fault.message.startswith(f"nothing holds the next start of {MACHINE}, as its gate is overridden: OVERLAP")


@pytest.mark.parametrize("is_read", [True, False])
def test_an_edited_drop_in_has_one_remedy(node: Node, is_read: bool) -> None:
    """A reload alone would have systemd read what somebody has taken out of it."""
    name = f"{UNITS}/{TEMPLATE}.d/zz-hostrouting.conf"
    node.write(name, "[Service]\n")
    if is_read:
        node.reload()
    found = [each for each in examine(host=node.host).faults if each.kind not in ("not-examined", "no-restart")]
    assert sorted(each.kind for each in found) == ["file-differs", "gate-overridden" if is_read else "not-reloaded"]
    assert {each.remedy for each in found} == {
        "hostrouting plan CONFIG shows the difference, hostrouting apply CONFIG ends it"
    }


def test_a_start_that_is_held_right_now_is_told_with_its_time(node: Node) -> None:
    for began, is_told in (("1", True), (str(10**18), False)):
        node.units.properties[MACHINE] = {"SubState": "condition", "InactiveExitTimestampMonotonic": began}
        found = [each for each in examine(host=node.host).faults if each.kind == "held"]
        assert [each.subject for each in found] == [MACHINE] * is_told
        assert all(f"journalctl -u {MACHINE}" in each.remedy for each in found)


def test_where_nothing_is_asked_for_and_nothing_installed_no_gate_holds(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    bare = Host(routes=shadowed_kernel(), units=FakeSystemd(layout), layout=layout)
    report = examine(Config(), host=bare)
    assert report.is_broken
    (fault,) = report.faults
    assert fault.kind == "not-installed"
    assert fault.message == "nothing is asked for, and nothing installed: no node is held back"


def test_a_trial_that_stands_is_told_also_where_nothing_is_installed(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    bare = Host(routes=shadowed_kernel(), units=FakeSystemd(layout), layout=layout)
    phases.run(TryRoutes(config(), 600, host=bare))
    found = {each.kind: each for each in examine(host=bare).faults}
    assert found.keys() == {"trial-stands", "not-installed"}
    assert "hostrouting remove" in found["trial-stands"].remedy


def test_during_a_trial_no_verdict_is_given_on_the_next_start(node: Node) -> None:
    """That start ends the trial first."""
    phases.run(TryRoutes(config(), 600, host=node.host))
    (fault,) = (each for each in examine(host=node.host).faults if each.kind in ("unjudged", "shadowed"))
    assert (fault.kind, fault.severity) == ("unjudged", Severity.UNKNOWN)
    assert "a start ends the trial of routes first" in fault.message


def test_what_only_may_break_later_is_listed_and_counts_with_strict_alone(node: Node, capsys: Any) -> None:
    never_restart(node)
    assert cli.main(["doctor"], host=node.host) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is broken; 1 may break it later"
    assert cli.main(["doctor", "--strict"], host=node.host) == 1
    node.link(f"{UNITS}/{MACHINE}.d/zz-hostrouting.conf", "/dev/null")
    assert cli.main(["doctor"], host=node.host) == 1


def test_the_live_verdict_comes_first(node: Node, capsys: Any) -> None:
    node.delete_ours()
    assert cli.main(["doctor"], host=node.host) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert "its next start is held back: OVERLAP: expected CIDR 172.16.1.0/24" in first


def test_the_command_reads_the_default_config_if_there_is_one_and_a_named_one_must_be_there(
    node: Node, capsys: Any
) -> None:
    node.write(f"{CONFIG_DIR}/config.json", json.dumps(config("172.16.9.0/24").to_mapping()))
    assert cli.main(["doctor"], host=node.host) == 1
    out = capsys.readouterr().out
    assert "CONFIG asks for something else" in out
    assert "do: hostrouting apply\n" in out
    path = node.layout.of("/my config.json")
    path.write_text(node.read(f"{CONFIG_DIR}/config.json"))
    assert cli.main(["doctor", str(path)], host=node.host) == 1
    assert f"hostrouting apply '{path}'" in capsys.readouterr().out
    assert cli.main(["doctor", str(node.layout.of("/none.json"))], host=node.host) == 78


def test_a_template_is_named_itself_and_no_instance_that_nobody_has(node: Node) -> None:
    prefix, suffix = TEMPLATE.split("@")
    bare = FakeSystemd(node.layout, running=[f"{prefix}@hostrouting-probe{suffix}", MACHINE])
    node.remove(f"{UNITS}/{TEMPLATE}.d/restart.conf")
    host = Host(routes=node.kernel, units=bare, layout=node.layout)
    node.write(f"{UNITS}/{TEMPLATE}.d/zzz.conf", "[Service]\nExecStartPre=\nRootDirectory=/srv\n")
    bare.reload()
    subjects = {(fault.kind, fault.subject) for fault in examine(host=host).faults}
    assert {
        (kind, each) for kind in ("gate-overridden", "own-files", "no-restart") for each in (TEMPLATE, MACHINE)
    } <= subjects


# --- cycles --------------------------------------------------------------------------------------------------------


def test_a_shortest_cycle_through_what_matters_is_found_and_no_other() -> None:
    after = {"a": ["b", "x"], "b": ["c"], "c": ["a"], "x": ["a"], "p": ["q"], "q": ["p"]}
    assert find_cycle(after, ["a"]) == ("a", "x")
    assert find_cycle(after, ["b"]) == ("b", "c", "a")
    assert find_cycle({"a": ["p"], "p": ["q"], "q": ["p"]}, ["a"]) == ()
    assert find_cycle({"a": ["a"]}, ["a"]) == ("a",)
    assert find_cycle({}, ["a"]) == ()
