"""Test the real command line in its own network and mount namespaces, with a temporary /run and /etc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from command_line import CONFIG, on_a_host
from test_refused_files import RUN, SYSTEMCTL

from hostrouting.boot.layout import Layout
from hostrouting.boot.python import python_of

pytestmark = pytest.mark.kernel

HOST = os.uname().nodename

# The awaited route never comes. The pipe's reader can tell when the wait has begun.
WITHOUT_DEFAULT_ROUTE = r"""
sed -i 's/"waitSeconds": 0/"waitSeconds": 600/' "$CONFIG"
ip route del default
mkfifo "$SCRATCH/progress"
"""


def test_a_host_goes_through_check_plan_apply_check_remove(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        tables() { ip -4 route show table all; ip -6 route show | grep -v ^fe80; }
        before=$(tables)
        cp "$CONFIG" /etc/aks-flex-node/config.json
        hostrouting plan > "$SCRATCH/plan" || echo "plan: $?"
        head -n 2 "$SCRATCH/plan"
        hostrouting apply --routes-only
        ip route get 172.16.1.1 | head -n 1
        ip route get fd00:16:0:1::1 | cut -d " " -f -5
        ls /etc/aks-flex-node /run/aks-flex-node
        hostrouting check
        hostrouting remove
        [ "$before" = "$(tables)" ] && echo as-before
        """,
    )
    assert done.stderr == ""
    line = "172.16.1.0/24 via 10.1.0.1 dev eth0 proto hostrouting"
    line6 = "fd00:16:0:1::/64 via fd00:a::1 dev eth0 proto hostrouting metric 512"
    assert [text.strip() for text in done.stdout.splitlines()] == [
        "plan: 2",
        f"+ {line}",
        f"+ {line6}",
        f"added     {line}",
        f"added     {line6}",
        "172.16.1.1 via 10.1.0.1 dev eth0 src 10.1.0.4 uid 0",
        "fd00:16:0:1::1 from :: via fd00:a::1",
        "/etc/aks-flex-node:",
        "config.json",
        "",
        "/run/aks-flex-node:",
        "lock",
        "run.lock",
        f"ok on {HOST}: 0 of 2 expected CIDRs fail; mode STRICT",
        "expected interface: eth0",
        "✓ 172.16.1.0/24     by eth0",
        "✓ fd00:16:0:1::/64  by eth0",
        f"removed   {line}",
        f"removed   {line6}",
        "as-before",
    ]


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


def test_an_unprivileged_snapshot_gets_the_nodes_own_verdict(tmp_path: Path) -> None:
    done = on_a_host(
        tmp_path,
        r"""
        elsewhere() { unshare --net "$PYTHON" -m hostrouting "$@"; }
        cd "$SCRATCH"
        setpriv --bounding-set=-all --inh-caps=-all "$PYTHON" -m hostrouting snapshot > ours.json
        hostrouting check "$CONFIG" > live || echo "live: $?"
        elsewhere check "$CONFIG" --snapshot - < ours.json > judged || echo "judged: $?"
        cmp live judged
        elsewhere check "$CONFIG" > judged || echo "elsewhere: $?"
        """,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["live: 1", "judged: 1", "elsewhere: 2"]


@pytest.mark.parametrize("folder", ["/etc", "/run/aks-flex-node"])
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


def test_a_check_in_another_network_says_so(tmp_path: Path) -> None:
    """PID 1 is the shell of the host."""
    done = on_a_host(
        tmp_path,
        r"""
        export PYTHON CONFIG
        unshare --pid --fork --kill-child --mount-proc bash -c '
          for enter in "env" "unshare --net"; do
            echo "$enter: $($enter "$PYTHON" -m hostrouting check "$CONFIG" --output json | grep -c NETNS)"
          done
        '
        """,
    )
    assert done.stdout.splitlines() == ["env: 0", "unshare --net: 1"]


@pytest.mark.parametrize("enter", ["unshare --net", "ip netns exec other"])
def test_a_watch_in_another_network_leaves_no_marker(tmp_path: Path, enter: str) -> None:
    """PID 1 is the shell of another host, which shares this host's files but not its network."""
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


# --- the Python of units and scripts ---------------------------------------------------------------------------------
# Root can run apply with a hostrouting that only PYTHONPATH names, but no unit or script runs that one.


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Create a Python without packages."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare/bin/python"


def run_apply(tmp_path: Path, python: Path, *words: str, **more: object) -> subprocess.CompletedProcess[str]:
    script = f'set +e\n({RUN})\nstatus=$?\ncat /etc/aks-flex-node/check-route-overlap.sh\nexit "$status"'
    arguments = ("-m", "hostrouting", "apply", *words, str(tmp_path / "config.json"))
    packages = os.pathsep.join(path for path in sys.path if path)
    environment = {"PYTHON": str(python), "SYSTEMCTL": SYSTEMCTL, "PYTHONPATH": packages}
    config = {"hostRouting": CONFIG["hostRouting"] | more}
    return on_a_host(tmp_path, script, *arguments, config=config, **environment)


def test_a_package_by_pythonpath_is_never_rendered(tmp_path: Path, bare: Path) -> None:
    done = run_apply(tmp_path, bare)
    assert done.returncode == 0, done.stderr
    assert f"{bare} -I finds no hostrouting" in done.stderr
    assert "readonly PYTHON=''\n" in done.stdout


def test_a_package_of_every_environment_is_rendered(tmp_path: Path) -> None:
    done = run_apply(tmp_path, Path(sys.executable))
    assert done.returncode == 0, done.stderr
    assert "finds no hostrouting" not in done.stderr
    assert f"readonly PYTHON={sys.executable}\n" in done.stdout


def test_a_watcher_by_pythonpath_is_not_installed(tmp_path: Path, bare: Path) -> None:
    done = run_apply(tmp_path, bare, "--output", "json", watch={"enabled": True})
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert "-I finds no hostrouting" in document["error"]
    assert "watch.enabled" in document["hint"]
    assert not document["changed"]


def test_a_missing_python_is_never_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert python_of(Layout()) == ""
