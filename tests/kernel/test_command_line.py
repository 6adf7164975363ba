"""Test the real command line in its own network and mount namespaces, with a throw-away /run and /etc."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CONFIG, SETUP

pytestmark = pytest.mark.kernel

HOST = os.uname().nodename
PAGE = (Path(__file__).parent.parent.parent / "docs/howto/snapshots.md").read_text()
(BY_HAND,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

# The awaited route never comes. The pipe's reader notices when the wait has begun.
WITHOUT_DEFAULT_ROUTE = r"""
sed -i 's/"waitSeconds": 0/"waitSeconds": 600/' "$CONFIG"
ip route del default
mkfifo "$SCRATCH/progress"
"""


def on_a_host(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run bash on a throw-away host."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return subprocess.run(
        ["unshare", "--net", "--mount", "--", "bash", "-c", SETUP + script],
        env=os.environ
        | {"SCRATCH": str(scratch), "PYTHON": sys.executable, "CONFIG": str(tmp_path / "config.json")}
        | {"BY_HAND": BY_HAND},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_host_goes_through_check_plan_apply_check_remove(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        before=$(ip -4 route show table all)
        cp "$CONFIG" /etc/aks-flex-node/config.json
        hostrouting check > "$SCRATCH/out" || echo "check: $?"
        hostrouting plan > "$SCRATCH/plan" || echo "plan: $?"
        head -n 1 "$SCRATCH/plan"
        hostrouting apply --routes-only
        ip route get 172.16.1.1 | head -n 1
        ls /etc/aks-flex-node /run/aks-flex-node
        hostrouting check
        hostrouting remove
        [ "$before" = "$(ip -4 route show table all)" ] && echo as-before
        """,
    )
    assert done.stderr == ""
    line = "172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting"
    assert [text.strip() for text in done.stdout.splitlines()] == [
        "check: 1",
        "plan: 2",
        f"+ {line}",
        f"added     {line}",
        "172.16.1.1 via 10.1.0.1 dev eth0 src 10.1.0.4 uid 0",
        "/etc/aks-flex-node:",
        "config.json",
        "",
        "/run/aks-flex-node:",
        "lock",
        "run.lock",
        f"ok on {HOST}: 0 of 1 expected CIDRs fail; mode STRICT",
        "expected interface: eth0",
        "✓ 172.16.1.0/24  by eth0",
        f"removed   {line}",
        "as-before",
    ]


def test_fix_prints_a_config_and_commands_that_work(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        cd "$SCRATCH"
        before=$(ip -4 route show table all)
        hostrouting fix "$CONFIG" --cidr 172.16.2.0/23 > fixed.json 2> advice
        grep -c neighbours advice
        [ "$before" = "$(ip -4 route show table all)" ] && echo as-before
        hostrouting apply --routes-only fixed.json
        hostrouting check fixed.json --cidr 172.16.2.0/23
        ip route flush proto 217
        hostrouting fix --cidr 172.16.2.0/23 --format ip 2> advice | sh -eu
        hostrouting check --cidr 172.16.2.0/23
        """,
    )
    assert [line.strip() for line in done.stdout.splitlines() if line] == [
        "1",
        "as-before",
        "added     172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting",
        "added     172.16.2.0/23 via 10.1.0.1 dev eth0 proto hostrouting",
        f"ok on {HOST}: 0 of 2 expected CIDRs fail; mode STRICT",
        "expected interface: eth0",
        "✓ 172.16.1.0/24  by eth0",
        "✓ 172.16.2.0/23  by eth0",
        f"ok on {HOST}: 0 of 1 expected CIDRs fail; mode WARN",
        "expected interface: eth0",
        "✓ 172.16.2.0/23  by eth0",
    ]
    assert done.stderr == ""


def test_without_cap_net_admin_apply_is_77_and_check_works(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        before=$(ip -4 route show table all)
        hostrouting() { setpriv --bounding-set=-net_admin --inh-caps=-all "$PYTHON" -m hostrouting "$@"; }
        hostrouting apply --routes-only "$CONFIG" || echo "apply: $?"
        hostrouting check --cidr 10.96.0.0/12
        [ "$before" = "$(ip -4 route show table all)" ] && echo as-before
        """,
    )
    assert done.stdout.splitlines() == [
        "apply: 77",
        f"ok on {HOST}: 0 of 1 expected CIDRs fail; mode WARN",
        "expected interface: eth0",
        "✓ 10.96.0.0/12  by eth0",
        "as-before",
    ]
    assert "can't add 172.16.1.0/24" in done.stderr
    assert "not permitted (kernel: Operation not permitted)" in done.stderr
    assert "hint: run as root (CAP_NET_ADMIN)" in done.stderr


def test_sigterm_ends_a_waiting_apply_at_once_with_1(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        WITHOUT_DEFAULT_ROUTE
        + r"""
        before=$(ip -4 route show table all)
        "$PYTHON" -m hostrouting apply --routes-only "$CONFIG" 2> "$SCRATCH/progress" &
        { read -r line; echo "$line"; kill -TERM $!; cat; } < "$SCRATCH/progress"
        wait $! || echo "apply: $?"
        [ "$before" = "$(ip -4 route show table all)" ] && echo as-before
        """,
    )
    assert done.stdout.splitlines()[1:] == [
        "hostrouting: stopped: SIGTERM; nothing is left half-done",
        "apply: 1",
        "as-before",
    ]
    assert done.stdout.startswith("waiting up to 600 s for the default route")


def test_apply_under_nohup_outlives_the_session_that_started_it(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        WITHOUT_DEFAULT_ROUTE
        + r"""
        nohup "$PYTHON" -m hostrouting apply --routes-only "$CONFIG" 2> "$SCRATCH/progress" >/dev/null &
        { read -r line; kill -HUP $!; ip route add default via 10.1.0.1; cat; } < "$SCRATCH/progress"
        wait $! && echo "apply: $?"
        """,
    )
    assert done.stdout.splitlines()[-1] == "apply: 0"


def test_two_processes_take_turns_with_the_same_result(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        hostrouting apply --routes-only "$CONFIG" > "$SCRATCH/1" & first=$!
        hostrouting apply --routes-only "$CONFIG" > "$SCRATCH/2" & second=$!
        wait $first; wait $second
        sort "$SCRATCH/1" "$SCRATCH/2"
        ip -N route show proto 217
        """,
    )
    line = "172.16.1.0/24 via 10.1.0.1 dev eth0"
    assert [text.strip() for text in done.stdout.splitlines()] == [
        f"added     {line} proto hostrouting",
        "nothing to change",
        f"unchanged {line} proto hostrouting",
        line,
    ]


def test_an_unprivileged_snapshot_gets_the_nodes_own_verdict(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        powerless() { setpriv --bounding-set=-all --inh-caps=-all "$@"; }
        elsewhere() { unshare --net "$PYTHON" -m hostrouting "$@"; }
        ip nexthop add id 5 via 10.1.0.1 dev eth0
        powerless "$PYTHON" -m hostrouting snapshot > "$SCRATCH/ours.json"
        cd "$SCRATCH"
        powerless sh -euc "$BY_HAND"
        hostrouting check "$CONFIG" > live || echo "live: $?"
        for recorded in ours.json node.json; do
          elsewhere check "$CONFIG" --snapshot "$recorded" > judged || echo "judged: $?"
          head -n 1 judged
          cmp <(tail -n +2 live) <(tail -n +2 judged)
        done
        elsewhere check --cidr 10.96.0.0/12 --snapshot - < ours.json
        elsewhere check "$CONFIG"  > judged || echo "elsewhere: $?"
        """,
    )
    assert done.stderr == ""
    assert [text.strip() for text in done.stdout.splitlines()] == [
        "live: 1",
        "judged: 1",
        f"overlap on {HOST}: 1 of 1 expected CIDRs fails; mode STRICT",
        "judged: 1",
        "overlap on node: 1 of 1 expected CIDRs fails; mode STRICT",
        f"ok on {HOST}: 0 of 1 expected CIDRs fail; mode WARN",
        "expected interface: eth0",
        "✓ 10.96.0.0/12  by eth0",
        "elsewhere: 2",
    ]


@pytest.mark.parametrize("folder", ["/etc", "/etc/systemd/system", "/etc/aks-flex-node", "/run/aks-flex-node"])
def test_an_image_with_this_hosts_folder_is_refused(tmp_path: Path, folder: str) -> None:
    done = on_a_host(
        tmp_path,
        f"""
        mkdir -p {folder} "$SCRATCH/image{folder}" "$SCRATCH/image/usr/lib/systemd/system"
        mount --bind {folder} "$SCRATCH/image{folder}"
        before=$(find /etc -newer "$SCRATCH/image")
        hostrouting apply --root "$SCRATCH/image" "$CONFIG" || echo "exit code $?"
        [ "$before" = "$(find /etc -newer "$SCRATCH/image")" ] && echo as-before
        """,
    )
    assert done.stdout == "exit code 78\nas-before\n", done.stderr
    assert "this host's own" in done.stderr


@pytest.mark.parametrize("enter", ["unshare --net", "ip netns exec other"])
def test_a_watch_in_another_network_leaves_no_marker(tmp_path: Path, enter: str) -> None:
    """PID 1 is the shell of another host, which shares the files but not the network."""
    done = on_a_host(
        tmp_path,
        f"""
        ip netns add other
        export PYTHON CONFIG
        unshare --pid --fork --kill-child --mount-proc bash -c '
          {enter} timeout 20 "$PYTHON" -m hostrouting watch "$CONFIG" || echo "exit code $?"
        '
        ls /run/aks-flex-node
        """,
    )
    assert done.stdout.splitlines()[0] == "exit code 1", done.stdout
    assert "hint: to enter the host's: nsenter --target 1 --net" in done.stderr
    assert "route-overlap" not in done.stdout
