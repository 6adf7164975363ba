"""The README says what is: its code compiles, its config loads, its tables name every key and command."""

from __future__ import annotations

import ast
import json
import os
import re
from ipaddress import IPv4Address
from pathlib import Path
from textwrap import indent

import attrs
import pytest

from hostrouting import Config, Host, Layout, RouteOverlap, StaticRoute, StaticRoutes, cli
from hostrouting.azure import HostNetworking, LoadBalancerProbe, StaleAzureVnet
from hostrouting.azure.examinations import examinations
from hostrouting.cli.demo import CONFIG
from hostrouting.config.routing import Watch
from hostrouting.config.schema import json_key
from hostrouting.doctor.examine import EXAMINATIONS
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.testing import FakeKernel, FakeSystemd

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_its_python_compiles_and_imports_what_there_is(code: str) -> None:
    tree = ast.parse(code)
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(tree, "README.md", "exec"), {})


def test_its_example_with_a_kernel_in_memory_runs() -> None:
    (code,) = [code for code in blocks("python") if "FakeKernel()" in code]
    exec(compile(code, "README.md", "exec"), {})


def test_its_config_loads() -> None:
    routing, neighbours = map(json.loads, blocks("json"))
    assert len(Config.from_mapping(routing).static_routes.routes) == 2
    networking = HostNetworking.from_mapping(neighbours)
    assert networking.load_balancer_probe.enabled
    assert networking.stale_azure_vnet is not None


def test_its_tables_name_every_key() -> None:
    for cls in (StaticRoute, StaticRoutes, RouteOverlap, Watch, Config, LoadBalancerProbe, StaleAzureVnet):
        for field in attrs.fields(cls):
            if not attrs.has(type(field.default)):
                key = json_key(field.name)
                assert re.search(rf"^\| .*`[^`]*{key}(\[\])?", README, re.MULTILINE), key


def test_its_table_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    commands = re.findall(r"^    ([\w-]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert commands == re.findall(
        r"^\| `([\w-]+)[^`]*` \| .* \| .*\d \|?", README.partition("## The command line")[2], re.MULTILINE
    )


def test_its_check_prints_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = FakeKernel()
    for dev, address in (("eth0", "10.1.0.4/24"), ("ib0", "172.16.0.10/16")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    gateway = NextHop("eth0", IPv4Address("10.1.0.1"))
    assert not kernel.add([Route(DEFAULT_DESTINATION, (gateway,), protocol=Protocol.DHCP)])
    (shown,) = [block for block in blocks("console") if "hostrouting fix config.json" in block]
    command, *lines = shown.splitlines()[:-1]
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))
    assert cli.main(command.removeprefix("$ hostrouting ").split(), host=host) == 1
    # What the README leaves out are the notes on own and broadcast addresses, and who changes sides.
    printed = capsys.readouterr().out.replace(f"on {os.uname().nodename}:", "on node-7:").splitlines()
    assert [line for line in printed if not re.match(r"note: |mind: ", line)] == lines


def test_its_recording_by_hand_is_the_one_that_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = blocks("sh")
    assert cli.main(["snapshot", "--help"]) == 0
    assert indent(commands, "  ") in capsys.readouterr().out


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_its_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / document).parent / target).exists(), target


def test_the_doctors_page_names_every_examination() -> None:
    page = (ROOT / "docs/reference/doctor.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == [
        each.name for each in (*EXAMINATIONS, *examinations(None))
    ]


def test_the_demos_config_is_one_that_the_readme_tells_of() -> None:
    assert CONFIG.route_overlap.mode == "STRICT"
    assert "172.16.1.0/24" in README
