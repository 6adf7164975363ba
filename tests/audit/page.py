"""Audit results as a terminal table and as a docs page."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from typing import TYPE_CHECKING

from worlds.ipv6 import FEATURES6

from audit.features import SEEN_FEATURES
from audit.figures import WAYS, Figures
from audit.hosts import FEATURES
from hostrouting.cli.output import bad, dim, good, head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_KINDS = ("", "plain hosts", "hosts with what a snapshot may not hold", "hosts that sockets judge")


def made(lookups: int, number: int) -> dict[str, str]:
    """Return an audit's date, command, kernel version and program versions."""
    ip = subprocess.run(["ip", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "by": f"./run audit {lookups} --seed {number}",
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {os.cpu_count()} cores",
        "programs": f"Python {platform.python_version()}, {ip}",
    }


def rows(figures: Figures) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the table rows, with a column for each kind of host."""

    def row(words: str, name: str) -> tuple[str, tuple[int, ...]]:
        return words, tuple(getattr(share, name) for share in figures.shares)

    yield row("hosts", "worlds")
    yield row("of them without a default route (each verdict is unknown, and must be)", "without_default")
    yield row("addresses looked up", "lookups")
    yield row("answers of the kernel, also for TCP and from each source", "answers")
    for way, words in WAYS.items():
        yield f"wrong: {words}", tuple(share.wrong[way] for share in figures.shares)
    yield "hosts of unknown verdict", tuple(share.unknown.total() for share in figures.shares)
    yield row("fixes applied", "fixes")
    yield row("their routes", "entries")
    yield row("addresses that they left failing", "left")
    yield row("addresses that they changed and shouldn't have", "changed")
    yield row("connections and datagrams seen leaving", "sockets")
    yield row("addresses at which they and the check disagree", "unseen")


def event_rows(figures: Figures) -> Iterator[tuple[str, int]]:
    """Yield the rows of the events table."""
    met = figures.events
    yield "hosts with two to ten interfaces", met.worlds
    yield "events that happened, each to the host made anew", met.events.total()
    for kind, events in sorted(met.events.items()):
        yield f"of them {kind}", events
    yield "whose verdict, findings or first addresses were foretold otherwise", met.mistakes
    yield "that couldn't be foretold, which is said", met.unknown.total()
    yield "interfaces that were passed over, to which they happened too", met.passed


def ipv6_rows(figures: Figures) -> Iterator[tuple[str, int]]:
    """Yield the rows of the IPv6 table."""
    six = figures.ipv6
    yield "hosts", six.worlds
    yield "addresses to which sockets sent", six.lookups
    yield "connections and datagrams seen leaving", six.sockets
    for way in ("live", "snapshot"):
        yield f"wrong: {WAYS[way]}", six.wrong[way]
    yield "hosts of unknown verdict, which says why", six.unknown.total()
    yield "fixes applied", six.fixes
    yield "their routes", six.entries
    yield "failures that they left", six.left


def reasons(figures: Figures) -> Iterator[tuple[str, str, int]]:
    """Yield each reason for unknown verdicts, with the kind of host and the number of hosts."""
    for kind, share in zip(_KINDS[1:], figures.shares, strict=True):
        for reason, hosts in sorted(share.unknown.items()):
            yield kind, reason, hosts


def as_table(figures: Figures) -> str:
    """Return the results as a table for a terminal."""
    lines = [f"{mistake}\n" for mistake in figures.mistakes]
    table = [_KINDS, *((words, *(f"{count:,}" for count in counts)) for words, counts in rows(figures))]
    first, *others = [max(map(len, column)) for column in zip(*table, strict=True)]
    heading, *aligned = [
        "  ".join((words.ljust(first), *(count.rjust(width) for count, width in zip(counts, others, strict=True))))
        for words, *counts in table
    ]
    lines += [head(heading), *aligned]
    lines += [f"  unknown on {hosts:,} {kind}: {reason}" for kind, reason, hosts in reasons(figures)]
    lines += [head("events"), *(f"{words}: {count:,}" for words, count in event_rows(figures))]
    lines += [head("IPv6"), *(f"{words}: {count:,}" for words, count in ipv6_rows(figures))]
    lines += [f"  unknown on {hosts:,} hosts: {reason}" for reason, hosts in sorted(figures.ipv6.unknown.items())]
    blamed = sorted((figures.odd.blamed + figures.seen.blamed).items())
    lines += [f"  wrong on {hosts:,} hosts: {words}" for words, hosts in blamed]
    paint = good if figures.is_right else bad
    return "\n".join([*lines, "", *(dim(line) for line in _made(figures)), paint(_verdict(figures))])


def _made(figures: Figures) -> list[str]:
    rate = figures.lookups / figures.seconds
    took = f"took: {figures.seconds:,.0f} s, {rate:,.0f} addresses a second"
    return [*(f"{what}: {words}" for what, words in figures.made.items()), took]


def _verdict(figures: Figures) -> str:
    if figures.is_right:
        return "Nothing is wrong."
    unknown = figures.plain.unknown.total()
    return f"{figures.mistaken:,} are wrong, and {unknown:,} verdicts on plain hosts are unknown."


# --- the page ----------------------------------------------------------------------------------------------------


def write_docs(figures: Figures, folder: Path) -> None:
    """Write the docs page and its figures.

    Args:
        figures: the audit's figures.
        folder: the output directory for ``audit.md`` and ``audit.json``.
    """
    (folder / "audit.json").write_text(json.dumps(figures.to_json(), indent=1) + "\n")
    (folder / "audit.md").write_text(_page(figures))


def _row(words: str, counts: Iterable[int]) -> str:
    return f"| {' | '.join((words, *(f'{count:,}' for count in counts)))} |"


def _page(figures: Figures) -> str:
    table = [_row(words, counts) for words, counts in rows(figures)]
    why = "\n".join(f"- {reason}: {hosts:,} {kind}" for kind, reason, hosts in reasons(figures))
    events = "\n".join(_row(words, (count,)) for words, count in event_rows(figures))
    six = "\n".join(_row(words, (count,)) for words, count in ipv6_rows(figures))
    six_features = "\n".join(_row(name, (figures.ipv6.features[name],)) for name in FEATURES6)
    features = [_row(name, (share.features[name] for share in figures.shares)) for name in (*FEATURES, *SEEN_FEATURES)]
    heading = f"| {' | '.join(_KINDS)} |\n|---|---:|---:|---:|"
    return f"""# The audit

{_verdict(figures)} The audit makes random hosts, asks the kernel about their addresses, and compares what
hostrouting says of each. This command takes about ten minutes on two cores, and writes this page and [its
figures](audit.json):

```console
$ ./run audit --docs docs
```

`./run audit --help` has the options. The same seed makes the same hosts.

{heading}
{chr(10).join(table)}

{"Why a verdict was unknown:" if why else "No verdict was unknown where there is a default route."}

{why}

## Events

[What is one event away](../howto/one-event.md) is foretold for other hosts, and then each event really happens to the host
made anew:

| | hosts that meet events |
|---|---:|
{events}

The events of interfaces that are passed over happen too: they must change nothing.

## IPv6

Other hosts have IPv6, and routers at the other ends of their cables that advertise themselves. There, too, only sockets
are asked: an unconnected datagram, a connected one, a connection's first packet, and a later packet of the same
connection, whose route is looked up again after any change of routes. Some routers don't answer.

| | IPv6 hosts |
|---|---:|
{six}

| what they have | IPv6 hosts |
|---|---:|
{six_features}

## How it is done

ip(8) makes each host at random, in a fresh network namespace. The audit asks the kernel about every address at
which anything begins or ends in the host's tables, rules and expected CIDRs, and about up to 1,024 other
addresses of each CIDR. It asks for a datagram, for TCP, and, where a rule has a `from`, from each source that a
connection would have. So it knows the kernel's answer for each address. It compares that with the check's
verdict: live, from a snapshot by `hostrouting snapshot`, from a snapshot by `ip -j`, and at boot, by the script
with one of gawk, mawk and busybox.

Then it applies the proposed fix and asks the kernel again. What failed must be right, but for what the fix
called unfixable, and what was fine must be as it was. On hosts with rules about sources it also begins a TCP
connection and two datagrams to each of some addresses, and sees their first packets leave.

The hosts of the second column have something that a snapshot may not hold. The verdict of their snapshot may be
the kernel's, or `unknown` with the reason. On plain hosts no verdict may be unknown.

The hosts of the third column have what a lookup doesn't tell, or what the audit would have to compute. There nothing
is asked: a TCP connection, a connected datagram and an unconnected one are sent to each address at which anything
begins or ends, and to some others, and are seen on all interfaces. Where a hop is taken by chance, or several default
routes compete, each is sent from many ports. An address that a note calls this host's own is put to the test: a route
to it is added, which must change nothing. Each verdict must be what the sockets did, or `unknown` with its reason,
which is counted above. After the fix they are sent again.

On the hosts with churn, commands of `ip` change routes, rules or addresses some hundreds of times a second, and then
change them back, while the host is checked, recorded by `hostrouting snapshot` and judged by the boot script. A
verdict is right there if the sockets do what it says at some moment of the cycle.

## What isn't tried

This kernel has no VRF, dummy, bond, VLAN, ipvlan or IPoIB interfaces, and no ciphers for IPsec. The sockets have no
mark, no type of service, no user but root and no bound interface, and they use few ports: rules that select by
these are on the hosts, and must not be met. IPsec policies and packet filters aren't made. No carrier is lost while
`ignore_routes_with_linkdown` is set already: the leg then gets no packets, and [counts as used](verdict.md).

## What the hosts have

{heading}
{chr(10).join(features)}

{chr(10).join(f"- {line}" for line in _made(figures))}
"""
