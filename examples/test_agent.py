"""Tests of the agent, which use fakes and need no root: python -m pytest examples/test_agent.py."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
from pathlib import Path

import attrs
import pytest
from agent import TRIED, Logged, bootstrap, h200, look

from hostrouting import Config, Host, Layout, OverlapMode, Snapshot, check
from hostrouting.backend import Protocol, Write, read_default_routes, read_routes
from hostrouting.testing import FakeKernel, FakeSystemd


@pytest.fixture
def kernel() -> FakeKernel:
    return h200()


@pytest.fixture
def host(kernel: FakeKernel, tmp_path: Path) -> Host:
    return Host(routes=Logged(kernel), units=FakeSystemd(), layout=Layout(tmp_path))


def ours(kernel: FakeKernel) -> list[str]:
    return [
        str(route.destination)
        for route in read_routes(kernel)
        if route.protocol is Protocol.HOSTROUTING
    ]


def test_a_host_gets_its_routes_and_the_node_starts(
    kernel: FakeKernel,
    host: Host,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent")
    assert asyncio.run(bootstrap(TRIED, host, ["echo", "node"])) == 0
    assert ours(kernel) == ["172.16.1.0/24"]
    assert [text.split()[:2] for text in caplog.messages if text.startswith("add")] == [
        ["add", "172.16.1.0/24"]
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("bootstrap/start-node: started") > lines.index(
        "bootstrap/check-route-overlap: started"
    )
    assert "bootstrap/prepare/timeout/pull-image: echo node" in lines


def test_rules_are_logged_and_shown_as_routes_are(
    kernel: FakeKernel,
    host: Host,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent")
    config = attrs.evolve(TRIED, static_routes=attrs.evolve(TRIED.static_routes, keep=["ib*"]))
    rule = "from 172.16.0.10 lookup 2170000"
    look(config, host, tmp_path / "node.json")
    assert f"would be added: 2170: {rule}" in capsys.readouterr().out.splitlines()
    assert asyncio.run(bootstrap(config, host, ["echo", "node"])) == 0
    assert f"add rule 2170: {rule}" in caplog.messages
    assert [str(each) for each in kernel.facts().rules if each.is_ours] == [rule]


def test_no_node_starts_with_a_shadowed_network(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(route_overlap=TRIED.route_overlap)
    assert asyncio.run(bootstrap(config, host, ["true"])) == 1
    said = capsys.readouterr()
    assert said.err.startswith("not starting the node: ")
    assert "start-node: started" not in said.out
    warned = attrs.evolve(
        config, route_overlap=attrs.evolve(config.route_overlap, mode=OverlapMode.WARN)
    )
    assert asyncio.run(bootstrap(warned, host, ["true"])) == 0
    assert "warning: OVERLAP: " in capsys.readouterr().out


def test_a_look_reports_problems_and_changes_nothing(
    kernel: FakeKernel, host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "node.json"
    assert look(TRIED, host, snapshot) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "verdict: overlap"
    assert lines[1].startswith("172.16.1.0/24 leaves through ib0: 172.16.0.0/16 dev ib0")
    assert lines[2].startswith("would be added: 172.16.1.0/24 via 10.1.0.1 dev eth0")
    assert ours(kernel) == []
    assert (
        check(TRIED, host=Host.recorded(Snapshot.load(snapshot))).findings
        == check(TRIED, host=host).findings
    )
    assert asyncio.run(bootstrap(TRIED, host, ["true"])) == 0
    assert look(TRIED, host, tmp_path / "another.json") == 0
    assert not (tmp_path / "another.json").exists()


def files(host: Host) -> set[str]:
    return {
        host.layout.relative(path)
        for path in host.layout.root.glob("etc/**/*")
        if not path.is_dir()
    }


def test_a_pull_that_fails_before_the_routes_leaves_nothing(
    kernel: FakeKernel, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """The routes task waits for another run, whose lock the test holds, and is stopped."""
    host.layout.run_lock.parent.mkdir(parents=True)
    with host.layout.run_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert asyncio.run(bootstrap(TRIED, host, ["false"])) == 1
    assert (ours(kernel), files(host)) == ([], set())
    said = capsys.readouterr()
    assert "not starting the node: Command" in said.err
    assert "stays: " not in said.out


def test_a_pull_that_fails_after_the_routes_leaves_them(
    kernel: FakeKernel, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pull takes until the routes task releases its lock."""
    script, lock = host.layout.script("static-routes"), host.layout.run_lock
    slow = f"until [ -e {script} ]; do sleep 0.01; done; exec flock {lock} false"
    assert asyncio.run(bootstrap(TRIED, host, ["sh", "-c", slow])) == 1
    assert ours(kernel) == ["172.16.1.0/24"]
    said = capsys.readouterr()
    assert "not starting the node: Command" in said.err
    told = [
        line.partition(", and stays: ") for line in said.out.splitlines() if ", and stays: " in line
    ]
    assert [what.split()[0] for _, _, what in told if not what.startswith("/")] == ours(kernel)
    assert {what for _, _, what in told if what.startswith("/")} == files(host)
    assert "start-node: started" not in said.out


def test_a_wait_is_printed_once(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    """The observer hears of it each second."""
    host.routes.write(Write.DELETE, read_default_routes(host.routes))
    assert asyncio.run(bootstrap(attrs.evolve(TRIED, wait_seconds=2), host, ["true"])) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if ": waiting up to 2 s for " in line]) == 1


def test_a_signal_ends_it_at_once(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    pulling = ["sh", "-c", f"kill -TERM {os.getpid()}; exec sleep 60"]
    assert asyncio.run(bootstrap(TRIED, host, pulling)) == 1
    said = capsys.readouterr()
    assert said.err == f"stopped by {signal.SIGTERM.name}; no node was started\n"
    assert "start-node" not in said.out.partition("started")[2]


def test_a_cancelled_coroutine_ends_it_too(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"

    async def impatient() -> None:
        agent = asyncio.create_task(
            bootstrap(TRIED, host, ["sh", "-c", f"touch {begun}; exec sleep 60"])
        )
        while not (begun.exists() or agent.done()):
            await asyncio.sleep(0.01)
        agent.cancel()
        await agent

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(impatient())
    assert "pull-image: cancelled" in capsys.readouterr().out
