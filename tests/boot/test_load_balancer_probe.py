"""The load balancer's probes on a really booted systemd: rewritten before the machine starts, whoever flushes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from boot.payloads import Payload, add_kubelet, add_nested_machine
from boot.test_gate import MENDED, RESTARTING, TEMPLATE, UNITS, files, install_into_image, start, write_config

if TYPE_CHECKING:
    from boot.rig import Machine

UNIT = "load-balancer-probe.service"
FLUSH = "nftables-flush.service"
NFT, AWAY = "/usr/sbin/nft", "/usr/sbin/nft.away"
LISTING = ("nft", "-s", "list", "table", "ip6", "azure_slb_probe")
PINNED = ("ip", "-6", "route", "show", "2603:1062:0:1:fe80:1234:5678:9abc")
NO_NFT = "there is no nft in /usr/sbin:/usr/bin:/sbin:/bin; install the package nftables"

# As the reference agent has it: ordered before no machine, though it says so, and run again with each.
REFERENCE_FLUSH = """\
[Unit]
Description=Flush nftables rules
Before=systemd-nspawn@.service
[Service]
Type=oneshot
RemainAfterExit=no
ExecStart=/usr/sbin/nft flush ruleset
[Install]
RequiredBy=systemd-nspawn@.service
"""

# A machine that isn't ordered after the flush starts before it.
SLOWLY = "[Service]\nExecStartPre=/bin/sleep 0.5\n"

# After our gate, and before the payload's process.
LOOK = f"[Service]\nExecStartPre=+/bin/sh -c '{' '.join(LISTING)} >>/run/seen || echo none >>/run/seen'\n"

CONFIG = "/root/networking.json"


def change(node: Machine, device: str | None = None, *, required: bool = True, consumer: str = TEMPLATE) -> None:
    """``hostrouting lb-probe apply``; without a device of a config that doesn't enable it. Off: into an image."""
    probe: dict[str, object] = {"enabled": False}
    if device is not None:
        probe = {"enabled": True, "devices": [device], "ipv6Detection": "ALWAYS", "required": required}
    document = {"hostRouting": {"consumer": consumer}, "hostNetworking": {"loadBalancerProbe": probe}}
    node.write(CONFIG, json.dumps(document))
    if node.is_on:
        node.python("lb-probe", "apply", CONFIG)
    else:
        apply = f"python3 -m hostrouting lb-probe apply --root /mnt/image {CONFIG}"
        node.run_offline("sh", "-euc", f"mkdir -p /mnt/image && mount --bind / /mnt/image && {apply}")


def listing(node: Machine) -> str:
    done = node.run(*LISTING, check=False)
    return done.stdout if done.returncode == 0 else "none\n"


def add_flusher(node: Machine) -> None:
    node.write(f"{UNITS}/{FLUSH}", REFERENCE_FLUSH)
    node.systemctl("enable", FLUSH, "nftables.service")


def seen(node: Machine) -> str:
    """What was in force as the payload was about to start, each time since this was asked last."""
    text = node.read("/run/seen")
    node.remove("/run/seen")
    return text


def is_ordered(node: Machine, payload: Payload) -> bool:
    """Whether the last flush was over before the payload's last start."""
    return node.when(FLUSH, "ExecMainExitTimestamp") < payload.starts()[-1]


def run_again(node: Machine, payload: Payload) -> None:
    count = len(payload.starts())
    node.systemctl("stop", payload.unit)
    assert start(node, payload)
    node.wait_until(lambda: len(payload.starts()) > count, "it starts again")


def test_rules_are_there_before_the_machine_starts_whoever_flushes_the_ruleset(node: Machine) -> None:
    payload, other = add_nested_machine(node), add_nested_machine(node, "kube2", enabled=False)
    add_flusher(node)
    node.write(f"{UNITS}/{FLUSH}.d/slowly.conf", SLOWLY)
    node.write(f"{UNITS}/{TEMPLATE}.d/zzz-look.conf", LOOK)
    write_config(node, MENDED)
    install_into_image(node)
    change(node, "eth0")
    node.boot()
    payload.wait_until_it_ran()
    wanted = listing(node)
    assert 'comment "answer out"' in wanted
    assert seen(node) == wanted
    assert is_ordered(node, payload)
    assert node.state(UNIT) == "active/exited"
    assert "via fe80::1234:5678:9abc dev eth0 proto hostrouting metric 1" in node.run(*PINNED).stdout
    assert node.journal(FLUSH).count("loaded    table ip6 azure_slb_probe") == 1  # so it has flushed

    assert start(node, other)  # flushes again, beside a machine that runs
    other.wait_until_it_ran()
    assert (seen(node), listing(node), is_ordered(node, other)) == (wanted, wanted, True)
    run_again(node, payload)
    assert (seen(node), listing(node), is_ordered(node, payload)) == (wanted, wanted, True)
    for verb, unit in (
        ("start", FLUSH),
        *((verb, "nftables.service") for verb in ("reload", "restart", "stop", "start")),
    ):
        node.run("nft", "add", "table", "ip", "theirs")
        node.systemctl(verb, unit)
        assert "theirs" not in node.run("nft", "list", "tables").stdout
        assert listing(node) == wanted, f"after {verb} of {unit}"


def test_installed_changed_and_removed_on_a_running_node_it_never_bounces_the_machine(node: Machine) -> None:
    payload = add_nested_machine(node)
    add_flusher(node)
    node.boot()
    payload.wait_until_it_ran()
    before, pid = files(node), payload.main_pid()
    change(node, "eth0")
    wanted = listing(node)
    assert 'iifname "eth0"' in wanted
    assert "dev eth0" in node.run(*PINNED).stdout
    done = node.run("systemd-analyze", "verify", "--man=no", f"{UNITS}/{UNIT}", check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    counted = node.run("nft", "-a", "list", "ruleset").stdout
    change(node, "eth0", required=False)
    node.systemctl("restart", UNIT)
    assert node.python("lb-probe", "plan", CONFIG).stdout.splitlines()[-1] == "nothing to change"
    assert node.run("nft", "-a", "list", "ruleset").stdout == counted
    assert "✓ probes" in node.python("doctor", CONFIG, check=False).stdout
    change(node, "ib0")
    assert payload.main_pid() == pid
    change(node, "eth0", consumer=payload.unit)
    assert listing(node) == wanted
    change(node)
    assert files(node) == before
    assert (payload.main_pid(), payload.is_running()) == (pid, True)
    assert (listing(node), node.run(*PINNED).stdout) == ("none\n", "")


@pytest.mark.one_release
def test_without_nft_required_rules_hold_the_node_back_until_it_is_there_and_others_warn(node: Machine) -> None:
    payload = add_nested_machine(node)
    add_flusher(node)  # without our part it fails, and, where it is ordered, the machine that requires it with it
    node.write(f"{UNITS}/{TEMPLATE}.d/restart.conf", RESTARTING)
    change(node, "eth0")
    node.run_offline("mv", NFT, AWAY)
    node.boot(wait=False)
    node.wait_until(lambda: int(node.show(payload.unit, "NRestarts")["NRestarts"]) > 0, "it was tried again")
    assert not payload.has_run()
    assert NO_NFT in node.journal(payload.unit)
    assert NO_NFT in node.journal(UNIT)
    node.run("mv", AWAY, NFT)
    payload.wait_until_it_ran()
    assert 'comment "answer out"' in listing(node)

    node.run("mv", NFT, AWAY)
    node.systemctl("stop", payload.unit)
    count = node.journal(payload.unit).count(NO_NFT)
    node.write("/etc/aks-flex-node/gate.off", "")
    assert start(node, payload)
    assert "GATE OFF: the file /etc/aks-flex-node/gate.off is there" in node.journal(payload.unit)
    node.remove("/etc/aks-flex-node/gate.off")
    change(node, "eth0", required=False)
    run_again(node, payload)
    assert node.journal(payload.unit).count(NO_NFT) == count + 1
    # Who flushes isn't harmed either.
    node.write(NFT, "#!/bin/sh\nexit 0\n", mode=0o755)
    for verb in ("start", "reload", "restart", "stop"):
        node.systemctl(verb, "nftables.service")
    assert node.state("nftables.service") == "inactive/dead"


@pytest.mark.one_release
def test_the_kernel_argument_admits_a_plain_consumer_loudly(node: Machine) -> None:
    payload = add_kubelet(node)
    change(node, "none0", consumer=payload.unit)
    node.boot(wait=False, kernel_arguments="quiet hostrouting.gate=off")
    node.wait_for(UNIT, "activating")
    node.wait_until(lambda: "waiting up to 30 s for device none0" in node.journal(UNIT), "the oneshot waits")
    assert not payload.has_run()
    node.add_nic("none0")
    payload.wait_until_it_ran()
    assert "GATE OFF: the kernel was started with hostrouting.gate=off" in node.journal(payload.unit)
    assert "dev none0" in node.run(*PINNED).stdout
