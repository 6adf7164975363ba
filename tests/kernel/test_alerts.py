"""Each alert of deploy/prometheus fires on what is measured on a real kernel that is sick, and none on a healthy one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import phases
from hostrouting import Config, Host, Layout, cli
from hostrouting.backend import NetlinkBackend
from hostrouting.model.routes import DEFAULT_DESTINATION
from hostrouting.testing import FakeSystemd
from hostrouting.watch.loop import WatchHostRouting

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = [pytest.mark.ci, pytest.mark.kernel]

RULES = Path(__file__).parents[2] / "deploy/prometheus/hostrouting.rules.yml"
ALERTS = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
SHADOWED, MENDED = "172.16.0.0/16", IPv4Network("172.16.1.0/24")
RUN_AT = "hostrouting_last_run_timestamp_seconds"


@pytest.fixture
def host(node: NamespaceKernel, tmp_path: Path) -> Host:
    return Host(NetlinkBackend(), FakeSystemd(), Layout(tmp_path))


@pytest.fixture
def check(host: Host, capsys: Any) -> Callable[[str], str]:
    """The metrics of ``hostrouting check``, as the node exporter would read them."""

    def run(cidr: str) -> str:
        cli.main(["check", "--cidr", cidr, "--output", "prometheus"], host=host)
        metrics: str = capsys.readouterr().out
        return metrics

    return run


def promtool(*words: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.fail("promtool isn't installed; Debian's package prometheus has it", pytrace=False)
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def firing(tmp_path: Path) -> Callable[..., None]:
    """Sees that just these alerts fire after some minutes in which the exporter goes on telling what was measured."""

    def see(metrics: str, *alerts: str, minutes: int = 10) -> None:
        # promtool's clock begins at 0, at which this was measured.
        lines = re.sub(rf"^{RUN_AT} .*", f"{RUN_AT} 0", metrics, flags=re.MULTILINE).splitlines()
        samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        series = [{"series": name, "values": f"{value}x{minutes}"} for name, _, value in samples]
        fire = {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
        }
        test = {"interval": "1m", "input_series": series, "promql_expr_test": [fire]}
        document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
        (tmp_path / "test.yml").write_text(json.dumps(document))
        done = promtool("test", "rules", tmp_path / "test.yml")
        assert done.returncode == 0, done.stdout + done.stderr

    return see


def test_prometheus_accepts_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_a_node_as_it_should_be_fires_none(check: Any, firing: Any) -> None:
    firing(check("10.96.0.0/12"))


def test_a_shadowed_node_fires_until_it_is_mended(check: Any, firing: Any, node: NamespaceKernel) -> None:
    firing(check(SHADOWED), "HostRoutingOverlap")
    subprocess.run(["ip", "route", "add", str(MENDED), "via", "10.1.0.1"], check=True)
    firing(check(SHADOWED), "HostRoutingOverlap")
    firing(check(str(MENDED)))


def test_a_node_without_a_default_route_fires(check: Any, firing: Any, node: NamespaceKernel) -> None:
    assert not node.delete([route for route in node.routes() if route.destination == DEFAULT_DESTINATION])
    firing(check(SHADOWED), "HostRoutingUnknown")


def test_a_shadowed_node_that_nobody_checks_any_more_fires(check: Any, firing: Any) -> None:
    firing(check(SHADOWED), "HostRoutingNotChecked", "HostRoutingOverlap", minutes=30)


def watched(host: Host, route: dict[str, str], until: str, meanwhile: Callable[[], None] = lambda: None) -> str:
    """The metrics of ``hostrouting watch`` of a shadowed node, as soon as one of them is 1."""
    (host.layout.root / "metrics").mkdir()
    document = {
        "staticRoutes": {"enabled": True, "routes": [route]},
        "routeOverlap": {"expectedCidrs": [SHADOWED]},
        "watch": {"textfile": "/metrics/hostrouting.prom"},
        "waitSeconds": 0,
    }
    config = Config.from_mapping({"hostRouting": document})
    textfile, scope = host.layout.root / "metrics/hostrouting.prom", phases.CancelScope(timeout=30)

    def hear(line: str) -> None:
        if line.startswith("STATUS="):
            meanwhile()
            if f"\n{until} 1\n" in textfile.read_text():
                scope.cancel("it is so far")

    task = WatchHostRouting(read=lambda: config, host=host, say=lambda _: None, tell=hear)
    with pytest.raises(phases.Cancelled):
        phases.run(task, scope=scope)
    return textfile.read_text()


def test_a_static_route_that_can_not_be_installed_fires(host: Host, firing: Any) -> None:
    metrics = watched(host, {"destination": str(MENDED), "dev": "ib7"}, "hostrouting_trouble")
    firing(metrics, "HostRoutingOverlap", "HostRoutingTrouble")


def test_a_static_route_that_somebody_keeps_removing_fires(host: Host, firing: Any) -> None:
    def remove() -> None:
        subprocess.run(["ip", "route", "delete", str(MENDED)], check=False, capture_output=True)

    metrics = watched(host, {"destination": str(MENDED)}, "hostrouting_routes_contested", remove)
    firing(metrics, "HostRoutingContested", "HostRoutingOverlap")


def test_each_alert_fires_in_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert all(f'"{alert}"' in text for alert in ALERTS)
