"""An audit as a table for a terminal, and as a page of the docs."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from typing import TYPE_CHECKING

from audit.figures import WAYS, Figures
from audit.hosts import FEATURES
from hostrouting.cli.output import bad, dim, good, head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KINDS = ("", "plain hosts", "hosts with what a recording may not hold")


def made(look_ups: int, number: int) -> dict[str, str]:
    """When and how an audit was made."""
    ip = subprocess.run(["ip", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "by": f"./run audit {look_ups} --seed {number}",
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {os.cpu_count()} cores",
        "programs": f"Python {platform.python_version()}, {ip}",
    }


def rows(figures: Figures) -> Iterator[tuple[str, int, int]]:
    """What is told of each kind of hosts."""
    plain, odd = figures.plain, figures.odd

    def row(words: str, name: str) -> tuple[str, int, int]:
        return words, getattr(plain, name), getattr(odd, name)

    yield row("hosts", "worlds")
    yield row("of them without a default route (each verdict is unknown, and must be)", "without_default")
    yield row("addresses looked up", "look_ups")
    yield row("answers of the kernel, also for TCP and from each source", "answers")
    for way, words in WAYS.items():
        yield f"wrong: {words}", plain.wrong[way], odd.wrong[way]
    yield "hosts of unknown verdict", plain.unknown.total(), odd.unknown.total()
    yield row("fixes applied", "fixes")
    yield row("their routes", "entries")
    yield row("addresses that they left failing", "left")
    yield row("addresses that they changed and shouldn't have", "changed")
    yield row("connections and datagrams seen leaving", "sockets")
    yield row("addresses at which they and the check disagree", "unseen")


def reasons(figures: Figures) -> Iterator[tuple[str, str, int]]:
    """Why nothing was judged."""
    for kind, share in zip(_KINDS[1:], (figures.plain, figures.odd), strict=True):
        for reason, hosts in sorted(share.unknown.items()):
            yield kind, reason, hosts


def as_table(figures: Figures) -> str:
    """An audit, aligned, for a terminal."""
    lines = [f"{mistake}\n" for mistake in figures.mistakes]
    table = [(words, f"{plain:,}", f"{odd:,}") for words, plain, odd in rows(figures)]
    widths = [max(map(len, column)) for column in zip(*table, _KINDS, strict=True)]
    lines.append(head("  ".join((_KINDS[0].ljust(widths[0]), _KINDS[1].rjust(widths[1]), _KINDS[2].rjust(widths[2])))))
    lines += [
        f"{words.ljust(widths[0])}  {plain.rjust(widths[1])}  {odd.rjust(widths[2])}" for words, plain, odd in table
    ]
    lines += [f"  unknown on {hosts:,} {kind}: {reason}" for kind, reason, hosts in reasons(figures)]
    lines += [f"  wrong on {hosts:,} hosts: {words}" for words, hosts in sorted(figures.odd.blamed.items())]
    paint = good if figures.is_right else bad
    return "\n".join([*lines, "", *(dim(line) for line in _made(figures)), paint(_verdict(figures))])


def _made(figures: Figures) -> list[str]:
    rate = figures.look_ups / figures.seconds
    took = f"took: {figures.seconds:,.0f} s, {rate:,.0f} addresses a second"
    return [*(f"{what}: {words}" for what, words in figures.made.items()), took]


def _verdict(figures: Figures) -> str:
    mistakes = figures.plain.mistakes + figures.odd.mistakes
    if figures.is_right:
        return "Nothing is wrong."
    unknown = figures.plain.unknown.total()
    return f"{mistakes:,} are wrong, and {unknown:,} verdicts on plain hosts are unknown."


# --- the page ----------------------------------------------------------------------------------------------------


def write_docs(figures: Figures, folder: Path) -> None:
    """Write the page, and the figures that it is made of.

    Args:
        figures: of an audit.
        folder: gets ``audit.md`` and ``audit.json``.
    """
    (folder / "audit.json").write_text(json.dumps(figures.to_json(), indent=1) + "\n")
    (folder / "audit.md").write_text(_page(figures))


def _page(figures: Figures) -> str:
    table = [f"| {words} | {plain:,} | {odd:,} |" for words, plain, odd in rows(figures)]
    why = "\n".join(f"- {reason}: {hosts:,} {kind}" for kind, reason, hosts in reasons(figures))
    features = [f"| {name} | {figures.plain.features[name]:,} | {figures.odd.features[name]:,} |" for name in FEATURES]
    heading = f"| {' | '.join(_KINDS)} |\n|---|---:|---:|"
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

## How it is done

ip(8) makes each host at random, in a fresh network namespace. The audit asks the kernel about every address at
which anything begins or ends in the host's tables, rules and expected CIDRs, and about up to 1,024 other
addresses of each CIDR. It asks for a datagram, for TCP, and, where a rule has a `from`, from each source that a
connection would have. So it knows the kernel's answer for each address. It compares that with the check's
verdict: live, from a recording by `hostrouting snapshot`, and from a recording by `ip -j`.

Then it applies the proposed fix and asks the kernel again. What failed must be right, but for what the fix
called unmendable, and what was fine must be as it was. On hosts with rules about sources it also begins a TCP
connection and two datagrams to each of some addresses, and sees their first packets leave.

The hosts of the right column have something that a recording may not hold. The verdict of their recording may
be the kernel's, or `unknown` with the reason. On all other hosts it may not be unknown.

## What the hosts have

{heading}
{chr(10).join(features)}

{chr(10).join(f"- {line}" for line in _made(figures))}
"""
