"""The page about other programs, made from the results of a run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.programs import OURS, PEERS

Facts = dict[str, Any]
Record = dict[str, Any]

# An observation from outside of the machine takes as long.
_POLLED_SECONDS = 0.05
# The kernel counts less CPU time only roughly.
_LEAST_SECONDS = 0.001

STEPS = {
    "install": "install",
    "change": "change 10",
    "nothing": "change nothing",
    "remove": "remove",
}


class Case(NamedTuple):
    """A case on the page.

    Args:
        title: what happens.
        cell: the function that puts the observations into words.
        phrase: what a program does that handles the case well.
        is_well: the function that returns whether the observations are of such a program.
    """

    title: str
    cell: Callable[[Facts], str]
    phrase: str
    is_well: Callable[[Facts], bool]


def _said(facts: Facts) -> str:
    return f"exit {facts['exit']}, " + (
        f"named by {facts['said']}" if facts["said"] else "not named"
    )


def _impossible(facts: Facts) -> str:
    used = [f"; this one as `{route}`" for route in facts["as"]]
    return f"{facts['left']:,} of {facts['of']:,} installed, {_said(facts)}{''.join(used)}"


def _foreign(facts: Facts) -> str:
    way = "kept" if facts["kept"] else "overwritten"
    way += ", its own next to it" if facts["kept"] and facts["added"] else ""
    return f"{way}, {_said(facts)}; {'there' if facts['after'] else 'lost'} after the removal"


def _repaired(facts: Facts) -> str:
    if facts["itself"] is not None:
        return "at once" if facts["itself"] < _POLLED_SECONDS else f"after {facts['itself']:.1f} s"
    return "with the next run" if facts["next"] else "not with the next run either"


def _link(facts: Facts) -> str:
    during = facts["during"]
    return (
        "stay"
        if during == 20 and facts["itself"] is not None
        else f"{during} of 20 stay; back {_repaired(facts)}"
    )


def _killed(facts: Facts) -> str:
    left = facts["left"]
    return (
        "it wrote nothing in time to be killed"
        if left is None
        else f"{left:,} there, complete {_repaired(facts)}"
    )


def _moved(facts: Facts) -> str:
    return _repaired(facts) if facts["default"] else "the default route itself didn't move"


def _dry_run(facts: Facts) -> str:
    if not facts["asked"]:
        return "no command"
    return ("lists it" if facts["listed"] else "doesn't list it") + (
        ", but installs it" if facts["changed"] else ""
    )


def _trial(facts: Facts) -> str:
    if not facts["tried"]:
        return "no command"
    undone = "not undone" if facts["back"] is None else f"undone after {facts['back']:.1f} s"
    return (
        f"{undone}; the next boot installs {'the tried' if facts['boot'] else 'the former'} routes"
    )


def _heals(facts: Facts) -> bool:
    return facts["itself"] is not None


CASES = {
    "impossible": Case(
        "one of 1,000 routes is impossible: its gateway isn't reachable",
        _impossible,
        "leaves the table as it was if a route is impossible, fails, and names it",
        lambda facts: bool(not facts["left"] and facts["exit"] and facts["said"]),
    ),
    "foreign": Case(
        "another program has a route to one of 20 destinations",
        _foreign,
        "keeps another program's route to the same destination, and says so",
        lambda facts: bool(facts["kept"] and facts["after"] and facts["said"]),
    ),
    "shadow": Case(
        "a connected subnet takes a part of a route's destination",
        _said,
        "says that a route is shadowed",
        lambda facts: bool(facts["said"]),
    ),
    "deleted": Case(
        "a route is deleted by hand: restored",
        _repaired,
        "restores a deleted route by itself",
        _heals,
    ),
    "link": Case(
        "the link is set down and up 3 times: the routes, the slowest time",
        _link,
        "has its routes after link down and up by itself",
        _heals,
    ),
    "carrier": Case(
        "the carrier is lost for 4 s: the routes",
        _link,
        "has its routes after a loss of carrier by itself",
        _heals,
    ),
    "moved": Case(
        "the default route gets another gateway: the routes follow",
        _moved,
        "lets routes follow the default route's gateway by itself",
        lambda facts: facts["default"] and _heals(facts),
    ),
    "kill": Case(
        "killed with SIGKILL while it installs 8,000 routes",
        _killed,
        "completes a killed run by itself",
        _heals,
    ),
    "dry_run": Case(
        "dry run of 1 new route",
        _dry_run,
        "lists the changes of a dry run",
        lambda facts: facts["asked"] and facts["listed"] and not facts["changed"],
    ),
    "trial": Case(
        "a change that undoes itself after 4 s",
        _trial,
        "undoes a trial, also for the next boot",
        lambda facts: facts["tried"] and _heals({"itself": facts["back"]}) and not facts["boot"],
    ),
}


def medians(measured: Record, key: str) -> Facts:
    """Return the median of each observation of a step."""
    rounds = [each[key] for each in measured["rounds"] if key in each]
    names = ("cpu", "complete", "writes", "memory", "there")
    found = {name: [each[name] for each in rounds if each[name] is not None] for name in names}
    return {name: statistics.median(values) if values else None for name, values in found.items()}


def _figures(record: Record, size: int) -> Iterator[str]:
    names = [f"{heading} {unit}" for heading in ("CPU", "time") for unit in STEPS.values()]
    yield f"| | rounds | {' | '.join(names)} | writes | memory |"
    yield "|---|--:|" + "--:|" * (len(names) + 2)
    for measured in record["peers"].values():
        found = [medians(measured, f"{size} {step}") for step in STEPS]
        cells = ["-" if step["cpu"] is None else f"{step['cpu'] * 1e3:,.0f} ms" for step in found]
        for step, facts in zip(STEPS, found, strict=True):
            wanted = 0 if step == "remove" else size
            missing = facts["there"] is not None and facts["there"] != wanted
            cells.append(
                f"{facts['there']:,.0f} of {wanted:,}" if missing else _seconds(facts["complete"])
            )
        writes = " / ".join(
            "-" if step["writes"] is None else f"{step['writes']:,.0f}" for step in found
        )
        memory = found[0]["memory"]
        cells += [
            writes,
            "-" if memory is None else f"{memory / 2**20:.0f} MiB" if memory else "none",
        ]
        yield f"| {measured['name']} | {len(measured['rounds'])} | {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _behaviours(record: Record) -> Iterator[str]:
    observed = [each for each in record["peers"].values() if each["cases"]]
    yield f"| | {' | '.join(each['name'] for each in observed)} |"
    yield "|---|" + "---|" * len(observed)
    for key, case in CASES.items():
        cells = (_cell(case, each["cases"].get(key, {"failed": "not run"})) for each in observed)
        yield f"| {case.title} | {' | '.join(cells)} |"


def _cell(case: Case, facts: Facts) -> str:
    return f"failed: {facts['failed']}" if "failed" in facts else case.cell(facts)


def _does_well(measured: Record, key: str) -> bool:
    facts = measured["cases"].get(key, {"failed": ""})
    return "failed" not in facts and CASES[key].is_well(facts)


def strengths(record: Record, name: str) -> list[str]:
    """Return what a program does better than ``hostrouting apply``, from the observations alone."""
    ours, theirs = record["peers"]["apply"], record["peers"][name]
    cheaper = []
    for size in record["sizes"]:
        if medians(theirs, f"{size} install")["there"] != size:
            continue  # to install only a part is no advantage
        for key in (f"{size} {step}" for step in STEPS):
            used, using = ([each[key]["cpu"] for each in side["rounds"]] for side in (theirs, ours))
            if max(used) < min(using):
                cheaper.append(
                    statistics.median(using) / max(statistics.median(used), _LEAST_SECONDS)
                )
    found = [
        case.phrase
        for key, case in CASES.items()
        if _does_well(theirs, key) and not _does_well(ours, key)
    ]
    if cheaper:
        steps, times = len(record["sizes"]) * len(STEPS), statistics.median(cheaper)
        found.insert(
            0,
            (
                f"uses less CPU in {len(cheaper)} of {steps} steps (in their median, "
                f"{times:.1f} times less)"
            ),
        )
    return found


def page(record: Record) -> str:
    """Return the page."""
    peers, sizes = record["peers"], record["sizes"]
    others = [name for name in peers if name in PEERS and PEERS[name].package]
    alone = [
        f"- {case.phrase}"
        for key, case in CASES.items()
        if _does_well(peers["apply"], key)
        and not any(_does_well(peers[name], key) for name in others)
    ]
    better = (
        f"- **{peers[name]['name']}** {_better(record, name)}." for name in peers if name != "apply"
    )
    busy = record["load"][0] > 1
    tables = "\n\n".join(
        f"### {size:,} routes\n\n" + "\n".join(_figures(record, size)) for size in sizes
    )
    parts = [
        HEAD,
        "## What each does better than `hostrouting apply`\n\n" + "\n".join(better),
        f"Of all of them, only `{OURS}` (with the watcher or without):\n\n"
        + "\n".join(alone or ["- nothing"]),
        "## What they do\n\n" + CASES_INTRODUCTION + "\n".join(_behaviours(record)),
        "## What they cost\n\n" + FIGURES_INTRODUCTION + tables,
        "## How it was measured\n\n" + SET_UP + "\n".join(_made(record)) + (BUSY if busy else ""),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _better(record: Record, name: str) -> str:
    if error := record["peers"][name]["error"]:
        return f"wasn't measured, or not completely: {error}"
    *most, last = strengths(record, name) or ["does nothing better here"]
    return "; ".join([*most, f"and {last}" if most else last])


def _made(record: Record) -> Iterator[str]:
    yield f"- made: {record['made']}, in {record['minutes']} minutes, with {record['kernel']}"
    versions = (
        f"{each['name']} {each['version']}" for each in record["peers"].values() if each["version"]
    )
    yield f"- versions, of Debian trixie: {', '.join(versions)}"
    yield f"- load average: {record['load'][0]:.1f} before, {record['load'][1]:.1f} after"


HEAD = """\
<!-- Made by ./run bench peers --docs docs from compared.json; edits are lost. -->

# Compared with other programs

Other programs install static routes, too. `./run bench peers` runs hostrouting and each of them on
a booted Debian machine of its own, with the same work, and observes what they do. This command
takes half an hour at most, and generates this page and [its figures](compared.json); `./run bench
peers NAME …` prints the page with only some of them:

```console
$ ./run bench peers --docs docs
```

[Performance](performance.md) compares hostrouting with `ip -batch`, which only installs routes.
"""

CASES_INTRODUCTION = """\
Each case is observed on a machine that has just booted. A program gets a new file and is told to
read it; then the table, its exit code, its output and the journal are read. A problem is *named* if
the output or the journal mentions the route or subnet, but not its neighbours. If it isn't said
after how many seconds a program repaired the table, it didn't within 8 seconds (BIRD: 70, because
it compares the tables once a minute; after SIGKILL: 30).

"""

FIGURES_INTRODUCTION = """\
*CPU* is the CPU time of everything on the machine that the command set off, such as daemons and
systemd, until the machine is idle again. *time* is the time until the last route is in the kernel,
or until the command returns if nothing changes. *writes* counts the kernel's messages about changed
routes, in the order of the columns. *memory* is the resident memory of the daemon's processes after
the installation. All are medians; compare by CPU, because the time depends on what else runs.

"""

SET_UP = """\
The machines run Debian trixie. They share the kernel of the host, and have no udevd: netplan gets a
`udevadm` that does nothing, and NetworkManager is configured to manage virtual interfaces.
systemd-networkd, netplan and NetworkManager get the address and default route of eth0 from the same
file as the routes; for the others, both are there. hostrouting is installed as by its Debian
package. Its routes name no gateway, so they use the default route's, and no unit has a gate. All
routes are IPv4. Each round has new machines, one at a time, and a program that takes too long has
only one round.

"""

BUSY = (
    "\n\nThe machine did other work at the time, "
    "so times are longer than on an idle one. CPU times differ less."
)


def write_docs(record: Record, text: str, folder: Path) -> None:
    """Write the page and its figures.

    Args:
        record: the results.
        text: the results as JSON.
        folder: the folder for ``compared.md`` and ``compared.json``.
    """
    (folder / "compared.json").write_text(text)
    (folder / "compared.md").write_text(page(record))
