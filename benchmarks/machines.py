"""The CPU time of a run, and of systemd, on a booted machine with the Debian package."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Measured
from benchmarks.measure import Contender, Span, side_by_side
from benchmarks.worlds import WrongOutcomeError, routes_of
from hostrouting.config.routing import Config
from hostrouting.model.family import IpNetwork

if TYPE_CHECKING:
    from boot.rig import Machine

_CONFIG = "/etc/aks-flex-node/config.json"
_PACKAGES = "/usr/lib/python3/dist-packages"
# A package's modules are compiled when it is installed.
_INSTALL = f"""
cp -r /opt/python/hostrouting /opt/python/phases /opt/python/attr /opt/python/attrs {_PACKAGES}
find {_PACKAGES} -name __pycache__ -prune -exec rm -r {{}} +
python3 -m compileall -q {_PACKAGES}
"""

# Prints the CPU time of a command and its children in seconds.
_MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime)
"""
# A command's last requests to systemd may still be running when it ends.
_SETTLE_SECONDS = 0.2
# The config changes so many routes each time.
_FEW = 10


def apply(changed: bool, size: int, rounds: int) -> Measured:
    """Compare the CPU time of ``hostrouting apply`` with that of ``import attrs``.

    Args:
        changed: whether each run has other routes than the one before, a hundredth of them but at
            most ten.
        size: the number of routes.
        rounds: how often to run each.
    """
    with _booted() as node:
        others: list[float] = []
        few = min(_FEW, size) if changed else 0
        spares = [route.destination for route in routes_of(size + rounds * few)[size:]]
        wanted = [route.destination for route in routes_of(size)]
        _install(node, wanted)

        def by_apply() -> Span:
            if few:
                wanted[-few:] = [spares.pop() for _ in range(few)]
                node.write(_CONFIG, _config(wanted))
            before = _systemd_seconds(node)
            span = _cpu(node, "python3", "-m", "hostrouting", "apply")
            time.sleep(_SETTLE_SECONDS)
            others.append(_systemd_seconds(node) - before)
            _expect(node, wanted)
            return span

        contenders: tuple[Contender, ...] = (
            by_apply,
            lambda: _cpu(node, "python3", "-c", "import attrs"),
        )
        found = side_by_side(rounds, *contenders)
    return Measured(found, [f"systemd {statistics.median(others) * 1000:.1f} ms"])


def obstacle() -> str | None:
    """Return the reason why no machine can be booted here, or None."""
    find_tests()
    from boot.keeper import obstacle as find_obstacle

    return find_obstacle()


def find_tests() -> None:
    """Make the modules of the tests importable."""
    tests = Path(__file__).parents[1] / "tests"
    sys.path += [str(tests), str(tests / "support")]


@contextmanager
def _booted() -> Iterator[Machine]:
    """Boot a machine with an uplink, InfiniBand, a consumer and hostrouting."""
    find_tests()
    from boot.payloads import add_nested_machine
    from boot.rig import Machine
    from boot.trees import find_or_build

    with Machine(find_or_build("trixie")) as node:
        install_package(node)
        node.add_nic("eth0", "10.1.0.4/24", gateway="10.1.0.1", metric=100)
        node.add_nic("ib0", "172.16.0.10/16")
        add_nested_machine(node).boot()
        yield node


def install_package(node: Machine) -> None:
    """Install hostrouting with compiled modules on a machine that is off, as its package does."""
    from boot.rig import FOUND

    node.remove(FOUND)
    node.run_offline("sh", "-euc", _INSTALL)


def _install(node: Machine, wanted: list[IpNetwork]) -> None:
    node.write(_CONFIG, _config(wanted))
    node.python("apply")
    # As after a boot.
    node.systemctl("start", "static-routes.service", "check-route-overlap.service")
    _expect(node, wanted)


def _config(wanted: list[IpNetwork]) -> str:
    routes = {
        "enabled": True,
        "routes": [{"destination": str(destination)} for destination in wanted],
    }
    overlap = {"expectedCidrs": ["10.96.0.0/12", str(wanted[0])], "mode": "STRICT"}
    return json.dumps(Config(static_routes=routes, route_overlap=overlap).to_mapping())


def _cpu(node: Machine, *argv: str) -> Span:
    return Span(float(node.run("python3", "-c", _MEASURE, *argv).stdout))


def _systemd_seconds(node: Machine) -> float:
    """Return the CPU time of the machine's cgroup, which excludes commands from outside."""
    usage = dict(line.split() for line in node.read("/sys/fs/cgroup/cpu.stat").splitlines())
    return int(usage["usage_usec"]) / 1e6


def _expect(node: Machine, wanted: list[IpNetwork]) -> None:
    there = {
        line.split()[0] for line in node.ip("-N", "route", "show", "proto", "217").splitlines()
    }
    if there != set(map(str, wanted)):
        raise WrongOutcomeError(
            f"{len(there)} routes, of {len(wanted)} wanted {len(there & set(map(str, wanted)))}"
        )
