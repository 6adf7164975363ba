"""Test the promises for IPv6 routes while another program changes the same route between any two of
our calls.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import attrs
import pytest
import siblings
from nightly import IS_NIGHTLY, some
from node import UPLINK, build_node6, run_ip
from scripts import Sandbox, awk_or_skip, render_check_route_overlap_script
from siblings import (
    ADDRESS,
    EXPIRES,
    LOSER,
    MEANWHILE,
    PLACE,
    STARTS,
    WANTED,
    Case,
    config_of,
    hops,
    try_ip6,
)

import phases
from hostrouting import Config, Host, Layout, RouteError, RoutesReport, Verdict, check
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.rtnetlink import messages as rtnl
from hostrouting.kernel.rtnetlink.conversation import Conversation
from hostrouting.model.family import Family
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

pytestmark = pytest.mark.kernel


@pytest.fixture
def host(kernel: NamespaceKernel, tmp_path: Path) -> Host:
    """Return a host on which a route to ``LOSER`` doesn't win."""
    assert kernel.facts().links
    build_node6()
    # Only the tests decide when the kernel removes expired routes.
    Path("/proc/sys/net/ipv6/route/gc_interval").write_text("100000")
    run_ip(UPLINK)
    assert try_ip6(
        f"rule add to {LOSER} lookup 100 priority 50", "route add default dev ib0 table 100"
    )
    return Host(NetlinkBackend(), FakeSystemd(), Layout(tmp_path), NetlinkBackend6())


# --- the task -------------------------------------------------------------------------------------


class Between:
    """Makes another program's change before one of our netlink messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send = Conversation._send

        def send_each(talk: Conversation, messages: bytes) -> None:
            # The kernel lets other programs in between two messages of a batch.
            for stretch in rtnl.stretches(messages):
                self.see(stretch)
                send(talk, stretch.messages)

        monkeypatch.setattr(Conversation, "_send", send_each)
        self.expect(-1)

    def expect(self, at: int, case: Case | None = None) -> None:
        """Wait for a message, or for none if its number is negative."""
        self.at, self.case, self.count, self.has_acted, self.is_asked = at, case, 0, False, False

    def see(self, stretch: rtnl.Stretch) -> None:
        if self.count == self.at and self.case is not None:
            self.has_acted = (
                siblings.expire()
                if self.case.meanwhile == EXPIRES
                else try_ip6(MEANWHILE[self.case.meanwhile])
            )
        is_lookup = stretch.kind == rtnl.RTM_GETROUTE and stretch.flags & rtnl.DUMP != rtnl.DUMP
        self.is_asked |= is_lookup and self.count >= self.at
        self.count += 1


def install(host: Host, wanted: Config) -> tuple[RoutesReport | None, str]:
    try:
        return phases.run(InstallRoutes(wanted, host=host)), ""
    except RouteError as error:
        return None, "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.timeout(1800 if IS_NIGHTLY else 120)
@pytest.mark.parametrize("start", some(STARTS, one_of=3, first=1))
def test_the_promises_hold_between_any_two_messages(
    host: Host, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    between = Between(monkeypatch)
    for case, rng in siblings.cases(start, [*WANTED], 2, defaults=2):
        case.build()
        between.expect(-1)
        install(host, case.wanted)
        for at in siblings.positions(case, between.count, rng):
            case.build()
            between.expect(at, case)
            report, error = install(host, case.wanted)
            has_acted, is_asked = between.has_acted, between.is_asked
            between.expect(-1)
            case.judge(error, has_acted=has_acted, is_asked=is_asked)
            before = hops()
            again, said = install(host, case.wanted)
            if again is None:
                assert hops() == before or "put back" in said
            elif report is not None and not has_acted:
                assert not again.changes
            (answer,) = host.routes_of(Family.IPV6).lookup([ADDRESS])
            is_by_uplink = answer.route is not None and answer.route.devs == ("eth0",)
            assert (check(case.wanted, host=host).verdict is Verdict.OK) == is_by_uplink
            install(host, config_of())
            case.assert_clean(has_acted=has_acted)
    assert isinstance(host.units, FakeSystemd)
    assert (host.units.starts, host.units.restarts, host.units.reloads) == ([], [], 0)


# --- the boot script ------------------------------------------------------------------------------

# Passes the commands of each batch to ip one by one, and runs $MEANWHILE before command $AT.
ONE_BY_ONE = r"""
real=$(readlink -f "$(command -v ip)")
cp "$real" "$ROOT/ip"
cat >"$ROOT/one-by-one" <<'END'
#!/bin/bash
force='' arguments=() number=0 status=0
for word; do
  case $word in -force) force=1 ;; -batch | -) ;; *) arguments+=("$word") ;; esac
done
[[ " $* " == *' -batch '* ]] || exec "$ROOT/ip" "$@"
while IFS= read -r line; do
  echo "$line" >>"$ROOT/calls"
  mapfile <"$ROOT/calls"
  [ "${#MAPFILE[@]}" != "$AT" ] || ! eval "$MEANWHILE" || : >"$ROOT/acted"
  "$ROOT/ip" "${arguments[@]}" -batch - <<<"$line" 2>"$ROOT/error"
  this=$?
  number=$((number + 1))
  [ ! -s "$ROOT/error" ] || sed "s/^Command failed -:1/Command failed -:$number/" "$ROOT/error" >&2
  [ "$this" = 0 ] || status=$this
  [ "$this" = 0 ] || [ "$force" ] || exit "$this"
done
exit "$status"
END
chmod +x "$ROOT/one-by-one"
mount --bind "$ROOT/one-by-one" "$real"
"""
EXPIRE = f"""
is_there() {{ "$ROOT/ip" -6 route show {PLACE} | grep -q "{siblings.E} "; }}
is_there && while is_there; do
  echo 0 >{siblings.FLUSH}
done
"""


@attrs.frozen
class Script:
    """Runs the boot script, and another program's change between two of its ip commands."""

    sandbox: Sandbox

    def run(self, case: Case, at: int) -> tuple[str, list[str], bool]:
        """Return what the script failed with, its ip commands, and whether anything has been
        changed meanwhile.
        """
        calls, acted = self.sandbox.root / "calls", self.sandbox.root / "acted"
        for path in (calls, acted):
            path.unlink(missing_ok=True)
        meanwhile = (
            EXPIRE if case.meanwhile == EXPIRES else f'"$ROOT/ip" -6 {MEANWHILE[case.meanwhile]}'
        )
        prepare = f"export AT={at + 1} MEANWHILE={shlex.quote(meanwhile)}\n{ONE_BY_ONE}"
        done = self.sandbox.run(render_static_routes(case.wanted), prepare=prepare)
        assert (done.returncode == 0) == (done.stderr == "")
        return done.stderr, calls.read_text().splitlines(), acted.exists()


@pytest.mark.timeout(1800 if IS_NIGHTLY else 120)
@pytest.mark.parametrize("start", some(STARTS, one_of=3))
def test_the_promises_hold_between_any_two_commands_of_the_script(
    host: Host, tmp_path: Path, start: str
) -> None:
    script = Script(Sandbox(tmp_path, awk_or_skip("mawk")))
    for case, rng in siblings.cases(
        start, ["apply", "refused apply", "refused removal"], 1, defaults=1
    ):
        case.build()
        _, commands, _ = script.run(case, -1)
        for at in siblings.positions(case, len(commands), rng):
            case.build()
            error, commands, has_acted = script.run(case, at)
            case.judge(
                error,
                has_acted=has_acted,
                is_asked=any(f"fibmatch {ADDRESS} " in each for each in commands[at:]),
            )
            (answer,) = host.routes_of(Family.IPV6).lookup([ADDRESS])
            is_by_uplink = answer.route is not None and answer.route.devs == ("eth0",)
            if IS_NIGHTLY or at % 2:
                gate = script.sandbox.run(
                    render_check_route_overlap_script([PLACE], "STRICT", wait_seconds=0)
                )
                assert (gate.returncode == 0) == is_by_uplink
            install(host, config_of())
            case.assert_clean(has_acted=has_acted)
