"""Test that probe rules are loaded before the machine starts, even after another unit flushes nft's
ruleset.
"""

from __future__ import annotations

import json

from boot.payloads import Payload, add_nested_machine
from boot.rig import ROOT, Machine
from boot.test_gate import FIXED, TEMPLATE, UNITS, files, install_into_image, start, write_config

UNIT = "load-balancer-probe.service"
FLUSH = "nftables-flush.service"
NFT, AWAY = "/usr/sbin/nft", "/usr/sbin/nft.away"
LISTING = ("nft", "-s", "list", "table", "ip6", "azure_slb_probe")
SHOW_HOST_ROUTE = ("ip", "-6", "route", "show", "2603:1062:0:1:fe80:1234:5678:9abc")

# The reference agent's unit is meant to run before the machine, but isn't ordered before it, and
# runs again for each machine. This one also leaves the time.
REFERENCE_FLUSH = """\
[Unit]
Description=Flush nftables rules
Before=systemd-nspawn@.service
[Service]
Type=oneshot
RemainAfterExit=no
ExecStart=/usr/sbin/nft flush ruleset
ExecStartPost=/bin/sh -c 'date +%%s.%%N >/run/flushed'
[Install]
RequiredBy=systemd-nspawn@.service
"""

# With this delay, a machine that isn't ordered after the flush starts before it.
SLOWLY = "[Service]\nExecStartPre=/bin/sleep 0.5\n"

# These steps run after the gate and before the payload's process.
LOOK = (
    "[Service]\nExecStartPre=+/bin/sh -c "
    f"'{' '.join(LISTING)} >>/run/seen || echo none >>/run/seen'\n"
)

CONFIG = "/root/networking.json"


def change(node: Machine, device: str | None = None, consumer: str = TEMPLATE) -> None:
    """Run ``hostrouting lb-probe apply``, on the image if the machine is off.

    Without a device, disable the probe.
    """
    probe = {"enabled": False} if device is None else {"enabled": True, "devices": [device]}
    document = {
        "hostRouting": {"consumer": consumer},
        "hostNetworking": {"loadBalancerProbe": probe},
    }
    node.write(CONFIG, json.dumps(document))
    if node.is_on:
        node.python("lb-probe", "apply", CONFIG)
    else:
        node.install("lb-probe", "apply", "--root", ROOT, f"{ROOT}{CONFIG}")


def listing(node: Machine) -> str:
    done = node.run(*LISTING, check=False)
    return done.stdout if done.returncode == 0 else "none\n"


def add_flusher(node: Machine) -> None:
    node.write(f"{UNITS}/{FLUSH}", REFERENCE_FLUSH)
    node.systemctl("enable", FLUSH, "nftables.service")


def seen(node: Machine) -> str:
    """Return the rules that were loaded at each of the payload's starts since the last call."""
    text = node.read("/run/seen")
    node.remove("/run/seen")
    return text


def is_ordered(node: Machine, payload: Payload) -> bool:
    """Return whether the last flush finished before the payload's last start."""
    return float(node.read("/run/flushed")) < payload.starts()[-1]


def run_again(node: Machine, payload: Payload) -> None:
    count = len(payload.starts())
    node.systemctl("stop", payload.unit)
    assert start(node, payload)
    node.wait_until(lambda: len(payload.starts()) > count, "it starts again")


def test_rules_are_there_before_the_machine_starts(node: Machine) -> None:
    """Another unit may flush the ruleset at each start."""
    payload, other = add_nested_machine(node), add_nested_machine(node, "kube2", enabled=False)
    add_flusher(node)
    node.write(f"{UNITS}/{FLUSH}.d/slowly.conf", SLOWLY)
    node.write(f"{UNITS}/{TEMPLATE}.d/zzz-look.conf", LOOK)
    write_config(node, FIXED)
    install_into_image(node)
    change(node, "eth0")
    payload.boot()
    wanted = listing(node)
    assert 'comment "answer out"' in wanted
    assert (seen(node), is_ordered(node, payload)) == (wanted, True)
    assert node.show(UNIT, "Result")["Result"] == "success"
    assert (
        "via fe80::1234:5678:9abc dev eth0 proto 218 metric 1" in node.run(*SHOW_HOST_ROUTE).stdout
    )

    assert start(node, other)  # this flushes again while a machine runs
    other.wait_until_it_ran()
    assert (seen(node), listing(node), is_ordered(node, other)) == (wanted, wanted, True)
    # The route vanishes as with its link, and each start restores it.
    node.ip("-6", "route", "flush", "proto", "218")
    run_again(node, payload)
    assert (seen(node), listing(node), is_ordered(node, payload)) == (wanted, wanted, True)
    assert "dev eth0" in node.run(*SHOW_HOST_ROUTE).stdout
    for verb, unit in (
        ("start", FLUSH),
        *((verb, "nftables.service") for verb in ("reload", "restart", "stop", "start")),
    ):
        node.run("nft", "add", "table", "ip", "theirs")
        node.systemctl(verb, unit)
        assert "theirs" not in node.run("nft", "list", "tables").stdout
        assert listing(node) == wanted, f"after {verb} of {unit}"


def test_a_machine_waits_for_a_flush_while_the_probe_runs(node: Machine) -> None:
    """A unit that is already running isn't ordered after a flush that starts later, so the machine
    itself has to be.
    """
    payload = add_nested_machine(node, enabled=False)
    add_flusher(node)
    node.write(
        f"{UNITS}/{FLUSH}.d/slowly.conf",
        "[Service]\nExecStartPre=/bin/sh -c 'touch /run/flushing; sleep 1'\n",
    )
    change(node, "eth0")
    node.boot()
    until = "until test -e /run/flushing; do sleep 0.1; done"
    node.write(f"{UNITS}/{UNIT}.d/busy.conf", f"[Service]\nExecStartPre=/bin/sh -c '{until}'\n")
    node.systemctl("daemon-reload")
    node.systemctl("start", "--no-block", UNIT)
    node.wait_until(lambda: node.state(UNIT) == "activating/start-pre", "the probe's unit runs")
    assert start(node, payload)
    payload.wait_until_it_ran()
    assert is_ordered(node, payload)


def test_no_change_restarts_a_running_machine(node: Machine) -> None:
    payload = add_nested_machine(node)
    add_flusher(node)
    payload.boot()
    before, pid = files(node), payload.main_pid()
    change(node, "eth0")
    wanted = listing(node)
    assert 'iifname "eth0"' in wanted
    assert "dev eth0" in node.run(*SHOW_HOST_ROUTE).stdout
    done = node.run("systemd-analyze", "verify", "--man=no", f"{UNITS}/{UNIT}", check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    node.systemctl("restart", UNIT)
    assert node.python("lb-probe", "plan", CONFIG).stdout.splitlines()[-1] == "nothing to change"
    assert "✓ probes" in node.python("doctor", CONFIG, check=False).stdout
    change(node, "ib0")
    assert payload.main_pid() == pid
    change(node, "eth0", "kubelet.service")
    assert listing(node) == wanted
    change(node)
    assert files(node) == before
    assert (payload.main_pid(), payload.is_running()) == (pid, True)
    assert (listing(node), node.run(*SHOW_HOST_ROUTE).stdout) == ("none\n", "")


def test_a_failure_at_boot_is_retried(node: Machine) -> None:
    """The node still starts: without nft, the flush that machines require is skipped."""
    payload = add_nested_machine(node)
    add_flusher(node)
    change(node, "none0")
    node.write(f"{UNITS}/{UNIT}.d/soon.conf", "[Service]\nRestartSec=500ms\n")
    node.run_offline("mv", NFT, AWAY)
    node.boot(wait=False)
    payload.wait_until_it_ran()
    assert "/usr/sbin/nft" in node.journal(UNIT)
    node.run("mv", AWAY, NFT)
    node.wait_until(
        lambda: 'comment "answer out"' in listing(node), "it is tried again, and nft is there"
    )
    node.add_nic("none0")
    node.wait_until(
        lambda: "dev none0" in node.run(*SHOW_HOST_ROUTE).stdout,
        "it is tried again, and the device is there",
    )
    node.run("mv", NFT, AWAY)
    run_again(node, payload)
    # The flushing unit still works too.
    node.write(NFT, "#!/bin/sh\nexit 0\n", mode=0o755)
    for verb in ("start", "reload", "restart", "stop"):
        node.systemctl(verb, "nftables.service")
    assert node.state("nftables.service") == "inactive/dead"
