"""A destination to which another program also has next hops, and what it may do while we change
ours.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from ipaddress import IPv6Address
from itertools import product
from pathlib import Path
from typing import Any

import attrs
from nightly import IS_NIGHTLY
from node import attempt, tool
from wanted import config

from hostrouting import Config

PLACE, LOSER = "fd00:1::/48", "fd00:2::/48"
# A and B are gateways of our next hops. T is another program's, and so is E, which has expired and
# goes soon.
A, B, T, E = "fd00:a::1", "fd00:a::9", "fd00:b::1", "fd00:b::3"
ADDRESS = IPv6Address("fd00:1::")
OURS, THEIRS = "proto 217", "proto 4"


def hop(gateway: str) -> str:
    return f"via {gateway} dev {'eth0' if gateway in (A, B) else 'ib0'}"


def append(gateway: str, owner: str, more: str = "metric 512") -> str:
    return f"route append {PLACE} {hop(gateway)} {owner} {more}"


def delete(gateway: str, owner: str) -> str:
    return f"route del {PLACE} {hop(gateway)} {owner} metric 512"


EXPIRED = append(E, THEIRS, "metric 512 expires 0")
OLD_MTU = "metric 512 mtu 1300"

STARTS = {
    "missing": [],
    "right": [append(A, OURS)],
    "stale": [append(B, OURS)],
    "stale MTU": [append(A, OURS, OLD_MTU)],
    "stale MTU of both": [append(A, OURS, OLD_MTU), append(B, OURS, OLD_MTU)],
    "theirs": [append(T, THEIRS)],
    "theirs, expired": [EXPIRED],
    "theirs behind": [append(A, OURS), append(T, THEIRS)],
    "theirs behind stale": [append(B, OURS), append(T, THEIRS)],
    "theirs behind stale MTU": [append(A, OURS, OLD_MTU), append(T, THEIRS)],
    "expired behind": [append(A, OURS), EXPIRED],
    "expired behind stale": [append(B, OURS), EXPIRED],
    "theirs between": [append(B, OURS), append(T, THEIRS), append(A, OURS)],
    "theirs before": [append(T, THEIRS), append(A, OURS)],
    "expired before": [EXPIRED, append(A, OURS)],
    "theirs beside": [append(B, OURS), append(T, THEIRS, "metric 1024")],
}
# Ours can't be found behind another program's next hop. We never put any there, and leave alone
# those that are.
HIDDEN = ("theirs before", "expired before")

EXPIRES = "expires"
MEANWHILE = {
    "joins": append(T, THEIRS),
    "joins with ours": append(A, THEIRS),
    "goes": delete(T, THEIRS),
    "replaces": f"route replace {PLACE} {hop(T)} {THEIRS} metric 512",
    "takes ours": delete(A, OURS),
    EXPIRES: "",
}
WANTED: dict[str, tuple[str, ...]] = {
    "apply": (PLACE,),
    "remove": (),
    "refused apply": (PLACE, LOSER),
    "refused removal": (LOSER,),
}
DEFAULTS = {
    (A,): f"route add default {hop(A)}",
    (A, B): f"route add default nexthop {hop(A)} nexthop {hop(B)}",
}
FLUSH = Path("/proc/sys/net/ipv6/route/flush")

Hop = tuple[str, int]


def try_ip6(*commands: str) -> bool:
    """Run ip commands, and return whether all succeeded."""
    return attempt("ip", "-6", "-force", "-batch", "-", stdin="\n".join(commands)).returncode == 0


def entries() -> list[dict[str, Any]]:
    return json.loads(tool("ip", "-6", "-N", "-j", "route", "show", PLACE) or "[]")  # type: ignore[no-any-return]


def hops() -> set[Hop]:
    """Return the gateway and metric of each next hop to our destination."""
    return {
        (each["gateway"], entry["metric"])
        for entry in entries()
        for each in entry.get("nexthops", [entry])
    }


def expire() -> bool:
    """Let the kernel remove the expired next hop, as it does within 30 seconds."""
    has_some = (E, 512) in hops()
    while (E, 512) in hops():
        FLUSH.write_text("0")
    return has_some


def config_of(*destinations: str) -> Config:
    return config(*destinations, cidrs=[PLACE])


@attrs.frozen
class Case:
    """A table, a run of ours, and what another program does meanwhile.

    Args:
        gateways: those of the default route, which our routes inherit.
        start: the name of the table before the run.
        action: the name of our run.
        meanwhile: the name of the other program's change.
    """

    gateways: tuple[str, ...]
    start: str
    action: str
    meanwhile: str

    @property
    def can_happen(self) -> bool:
        gateway = {"joins": T, "goes": T, EXPIRES: E}.get(self.meanwhile)
        return gateway is None or any(hop(gateway) in each for each in STARTS[self.start]) != (
            self.meanwhile == "joins"
        )

    @cached_property
    def wanted(self) -> Config:
        return config_of(*WANTED[self.action])

    def build(self) -> None:
        try_ip6(
            *(f"route del {PLACE} metric {n}" for n in (512, 1024)),
            f"route del {LOSER}",
            "route del default",
        )
        assert not entries()
        assert try_ip6(DEFAULTS[self.gateways], *STARTS[self.start])

    def found(self, owner: str) -> set[Hop]:
        """Return a program's next hops in the table before the run."""
        chosen = [each.split() for each in STARTS[self.start] if f" {owner} " in each]
        return {(words[4], int(words[words.index("metric") + 1])) for words in chosen}

    def theirs(self, *, has_acted: bool) -> set[Hop]:
        """Return the other program's next hops, which are the same without us."""
        theirs = self.found(THEIRS)
        if not has_acted:
            return theirs
        if self.meanwhile == "replaces":
            return {each for each in theirs if each[1] != 512} | {(T, 512)}
        joined = {"joins": {(T, 512)}, "joins with ours": {(A, 512)}}.get(self.meanwhile, set())
        return (
            theirs - {"goes": {(T, 512)}, EXPIRES: {(E, 512)}}.get(self.meanwhile, set()) | joined
        )

    def judge(self, error: str, *, has_acted: bool, is_asked: bool) -> None:
        """Assert what must hold after the run.

        Args:
            error: what the run failed with, or an empty string.
            has_acted: whether the other program has changed anything.
            is_asked: whether the run has looked up routes since.
        """
        now, theirs, before = hops(), self.theirs(has_acted=has_acted), self.found(OURS)
        assert theirs <= now
        assert error or LOSER not in WANTED[self.action]
        ours = now - theirs
        taken = {"replaces": {*before}, "takes ours": {(A, 512)}}.get(self.meanwhile, set())
        if error and "put back" in error:
            # Another program has taken the place, or ours; nothing new stays.
            assert has_acted
            assert theirs or taken
            assert ours <= before
        elif error:
            # A rollback may restore what another program has taken away just before our change.
            gone = self.found(THEIRS) - theirs
            assert before - taken - theirs <= ours <= before | gone
        elif PLACE in WANTED[self.action] and (is_asked or not has_acted):
            assert {gateway for gateway, metric in now if metric == 512} == {*self.gateways}

    def assert_clean(self, *, has_acted: bool) -> None:
        """Assert that a removal has left another program's next hops, and only those."""
        left = hops()
        deleted = [each for each in left if try_ip6(delete(each[0], OURS))]
        assert hops() == self.theirs(has_acted=has_acted)
        assert self.start in HIDDEN or not deleted


# By day, each of these meets the other program's change before every eighth message, the others
# before a random one.
WHOLE = (
    Case((A,), "stale", "refused apply", "joins"),
    Case((A,), "stale MTU", "apply", "joins"),
    Case((A, B), "stale MTU of both", "apply", "takes ours"),
)


def cases(
    start: str, actions: Sequence[str], count: int, *, defaults: int
) -> Iterator[tuple[Case, random.Random]]:
    """Yield cases: all in nightly runs, otherwise some, each with some of the default routes."""
    rng = random.Random(f"{start} {count}")
    every = [
        Case(gateways, start, action, meanwhile)
        for action, meanwhile in product(actions, MEANWHILE)
        for gateways in rng.sample([*DEFAULTS], defaults)
    ]
    every = [case for case in every if case.can_happen]
    chosen = (
        every
        if IS_NIGHTLY
        else {*rng.sample(every, count), *(case for case in WHOLE if case.start == start)}
    )
    yield from ((case, rng) for case in chosen)


def positions(case: Case, total: int, rng: random.Random) -> list[int]:
    """Return all positions in nightly runs, otherwise every eighth one of ``WHOLE``, or one."""
    every = [*range(total)]
    return (
        every
        if IS_NIGHTLY
        else every[rng.randrange(8) :: 8]
        if case in WHOLE
        else [rng.randrange(total)]
    )
