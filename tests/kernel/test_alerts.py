"""Test that each alert in deploy/prometheus fires for a broken node, and that none fires for a
healthy one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from node import attempt, run_ip
from wanted import config

import phases
from hostrouting import Host, Layout, cli
from hostrouting.backend import NetlinkBackend, Write, read_default_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.testing import FakeSystemd
from hostrouting.watch.loop import WatchHostRouting

pytestmark = [pytest.mark.ci, pytest.mark.kernel]

ROOT = Path(__file__).parents[2]
RULES, PAGE = ROOT / "deploy/prometheus/hostrouting.rules.yml", ROOT / "docs/howto/monitoring.md"
ALERTS = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
SHADOWED, HEALTHY, FIXED = "172.16.0.0/16", "10.96.0.0/12", IPv4Network("172.16.1.0/24")
RUN_AT = "hostrouting_last_run_timestamp_seconds"


@pytest.fixture
def host(node: NamespaceKernel, tmp_path: Path) -> Host:
    return Host(NetlinkBackend(), FakeSystemd(), Layout(tmp_path))


@pytest.fixture
def check(host: Host, capsys: Any) -> Callable[[str], str]:
    """Return the metrics of ``hostrouting check`` as the node exporter would read them."""

    def run(cidr: str) -> str:
        expected = ["--cidr", cidr] if cidr else []
        cli.main(["check", *expected, "--output", "prometheus"], host=host)
        metrics: str = capsys.readouterr().out
        return metrics

    return run


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("promtool isn't installed; Debian's package prometheus has it", pytrace=False)
    return subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def samples(tmp_path: Path) -> Callable[..., None]:
    """Check that a query returns exactly these labels, each with value 1, after a few minutes of
    samples.
    """

    def see(metrics: str, query: str, *labels: dict[str, str], minutes: int = 10) -> None:
        # promtool's clock starts at 0, so set the run's timestamp to 0 as well.
        lines = re.sub(rf"^{RUN_AT} .*", f"{RUN_AT} 0", metrics, flags=re.MULTILINE).splitlines()
        told = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        series = [
            {"series": of_node(name), "values": f"{value}x{minutes}"} for name, _, value in told
        ]
        wanted = [",".join(f'{name}="{value}"' for name, value in each.items()) for each in labels]
        fire = {
            "expr": query,
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": f"{{{each}}}", "value": 1} for each in wanted],
        }
        test = {"interval": "1m", "input_series": series, "promql_expr_test": [fire]}
        document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
        (tmp_path / "test.yml").write_text(json.dumps(document))
        done = promtool("test", "rules", tmp_path / "test.yml")
        assert done.returncode == 0, done.stdout + done.stderr

    return see


def of_node(series: str) -> str:
    """Add an ``instance`` label to a series, as Prometheus does when it scrapes a node."""
    name, _, labels = series.rstrip("}").partition("{")
    return f'{name}{{{labels}{"," if labels else ""}instance="n"}}'


@pytest.fixture
def firing(samples: Callable[..., None]) -> Callable[..., None]:
    """Check that exactly these alerts fire after a few minutes."""

    def see(metrics: str, *alerts: str, minutes: int = 10) -> None:
        query = 'count by (alertname) (ALERTS{alertstate="firing"})'
        samples(metrics, query, *({"alertname": alert} for alert in alerts), minutes=minutes)

    return see


def test_prometheus_accepts_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def fix(_: Host) -> None:
    run_ip(f"route add {FIXED} via 10.1.0.1")


def delete_default_route(host: Host) -> None:
    assert not host.routes.write(Write.DELETE, read_default_routes(host.routes))


def switch_off(host: Host) -> None:
    host.layout.gate_off.parent.mkdir(parents=True)
    host.layout.gate_off.touch()


NODES: dict[str, tuple[str, Callable[[Host], object], list[str], int]] = {
    "healthy": (HEALTHY, repr, [], 10),
    "shadowed": (SHADOWED, repr, ["Overlap"], 10),
    "shadowed beside a fix": (SHADOWED, fix, ["Overlap"], 10),
    "fixed": (str(FIXED), fix, [], 10),
    "without a default route": (SHADOWED, delete_default_route, ["Unknown"], 10),
    "without an expected CIDR": ("", repr, ["Unknown"], 10),
    "shadowed, with stale metrics": (SHADOWED, repr, ["NotChecked", "Overlap"], 30),
    "healthy, with the gate off": (HEALTHY, switch_off, ["GateOff"], 10),
    "shadowed, with the gate off": (SHADOWED, switch_off, ["GateOff", "Overlap"], 10),
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_fires_its_alerts_alone(name: str, host: Host, check: Any, firing: Any) -> None:
    cidr, change, alerts, minutes = NODES[name]
    change(host)
    firing(check(cidr), *(f"HostRouting{alert}" for alert in alerts), minutes=minutes)


def test_the_query_finds_sick_nodes_that_the_gate_will_hold(host: Host, samples: Any) -> None:
    """The query is documented in docs/howto/monitoring.md."""
    route = {"destination": str(FIXED), "dev": "ib7"}
    warn, strict = (
        watched(host, route, "hostrouting_problem", mode=mode) for mode in ("WARN", "STRICT")
    )
    query = re.search(r"```promql\n(.*hostrouting_info.*)\n```", PAGE.read_text())
    assert query is not None
    of_one = {
        "__name__": "hostrouting_cidr_verdict",
        "cidr": SHADOWED,
        "verdict": "overlap",
        "instance": "n",
    }
    held = 'consumer="systemd-nspawn@.service"'
    samples(warn.replace('consumer=""', held), query[1])
    samples(strict.replace('consumer=""', held), query[1], of_one)
    samples(strict, query[1])  # nothing is installed


def test_the_query_finds_nodes_without_metrics(check: Any, samples: Any) -> None:
    """The query is documented in docs/howto/monitoring.md."""
    query = re.search(r"```promql\n(up.*)\n```", PAGE.read_text())
    assert query is not None
    exporter = 'up{job="node"} 1\n'
    samples(exporter + check(HEALTHY), query[1])
    samples(exporter, query[1], {"__name__": "up", "job": "node", "instance": "n"})


def test_a_failed_run_keeps_old_metrics_and_fires(check: Any, firing: Any, tmp_path: Path) -> None:
    """Run the recipe from docs/howto/monitoring.md with hostrouting missing, unable to read its
    config, or working.
    """
    recipe = re.search(
        r"^\$ (hostrouting check --output prometheus .*)$", PAGE.read_text(), re.MULTILINE
    )
    assert recipe is not None
    metrics, textfile, program = (
        check(SHADOWED),
        tmp_path / "hostrouting.prom",
        tmp_path / "bin/hostrouting",
    )
    program.parent.mkdir()
    for script, code in (
        ("exit 78", 0o755),
        ("", 0o644),
        (f"cat <<'END'\n{metrics}END\nexit 1", 0o755),
    ):
        textfile.write_text(metrics)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(code)
        path = f"{program.parent}:/usr/bin:/bin"
        subprocess.run(
            ["bash", "-c", recipe[1]],
            cwd=tmp_path,
            env={"PATH": path},
            capture_output=True,
            check=False,
        )
        assert textfile.read_text() == metrics
    firing(textfile.read_text(), "HostRoutingNotChecked", "HostRoutingOverlap", minutes=30)


def watched(
    host: Host,
    route: dict[str, str],
    until: str,
    meanwhile: Callable[[], None] = lambda: None,
    mode: str = "WARN",
) -> str:
    """Return the metrics of ``hostrouting watch`` on a shadowed node once one of them is 1."""
    (host.layout.root / "var/metrics").mkdir(parents=True, exist_ok=True)
    keeping = config(
        route, cidrs=(SHADOWED,), mode=mode, watch={"textfile": "/var/metrics/hostrouting.prom"}
    )
    textfile, scope = (
        host.layout.root / "var/metrics/hostrouting.prom",
        phases.CancelScope(timeout=30),
    )

    def hear(line: str) -> None:
        if line.startswith("STATUS="):
            meanwhile()
            if f"\n{until} 1\n" in textfile.read_text():
                scope.cancel("it is so far")

    task = WatchHostRouting(read=lambda: keeping, host=host, say=lambda _: None, tell=hear)
    with pytest.raises(phases.Cancelled):
        phases.run(task, scope=scope)
    return textfile.read_text()


def test_a_refused_static_route_fires(host: Host, firing: Any) -> None:
    metrics = watched(host, {"destination": str(FIXED), "dev": "ib7"}, "hostrouting_problem")
    firing(metrics, "HostRoutingOverlap", "HostRoutingProblem")


def test_a_moved_default_route_fires(host: Host, firing: Any) -> None:
    host.layout.verified.parent.mkdir(parents=True)
    host.layout.verified.write_text("eth0\n")
    run_ip("route add default via 172.16.0.1 dev ib0 metric 1")
    route = {"destination": str(FIXED)}
    metrics = watched(host, route, "hostrouting_uplink_moved", mode="STRICT")
    firing(metrics, "HostRoutingOverlap", "HostRoutingUplinkMoved")


def test_a_static_route_that_another_program_keeps_removing_fires(host: Host, firing: Any) -> None:
    def remove() -> None:
        attempt("ip", "route", "delete", str(FIXED))

    metrics = watched(host, {"destination": str(FIXED)}, "hostrouting_routes_contested", remove)
    firing(metrics, "HostRoutingContested", "HostRoutingOverlap")
