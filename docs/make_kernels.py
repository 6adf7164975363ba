"""Write the page about other kernels from the results of ``./run kernels``:  ./run docs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "contributing"
KEYS = ("passed", "failed", "seconds", "snapshots")

HEAD = """\
<!-- Made by docs/make_kernels.py from kernels.json and machines.json; edits are lost. -->

# On other kernels

`./run kernels` runs the tests of `./run test` that use the kernel on the kernels of Debian's
releases. These are processes (User-Mode Linux) with the kernel's own code for routes, rules,
devices and namespaces, on this machine's files and Python. They have one CPU, no hardware, and lack
some options, such as NAT and SRv6. The figures add up the last run of each file of tests; a few
tests that failed on a busy machine, or before a fix, were repeated alone.

| kernel | of Debian | on | passed | failed | skipped | not run | minutes | snapshots |
|---|---|---|---|---|---|---|---|---|
"""

SNAPSHOTS = """
The last column counts snapshots of these tests' hosts, taken on that kernel, that got their hosts'
own verdicts on the machine that ran the tests.
"""

SKIPPED = """
A skipped test needs something that the kernel lacks:

| kernel | tests | reason |
|---|---|---|
"""


def count(results: dict[str, Any]) -> int:
    """Return the number of tests in a file's results."""
    return int(results["passed"] + results["failed"] + sum(results["skipped"].values()))


def kernels_part(record: dict[str, Any]) -> str:
    """Return the part about kernels."""
    rows, reasons = [], []
    most = max(sum(map(count, found["files"].values())) for found in record.values())
    for suite, found in sorted(
        record.items(), key=lambda item: [*map(int, item[1]["release"].split("."))]
    ):
        release, files = found["release"], found["files"].values()
        skipped = sum((Counter(each["skipped"]) for each in files), Counter[str]())
        passed, failed, seconds, snapshots = (sum(each[key] for each in files) for key in KEYS)
        others = most - sum(map(count, files))
        counts = (
            f"{passed} | {failed} | {skipped.total()} | "
            f"{others} | {round(seconds / 60)} | {snapshots}"
        )
        rows.append(f"| {release} | {suite} | {max(each['date'] for each in files)} | {counts} |")
        reasons += [
            f"| {release} | {count} | {reason} |" for reason, count in sorted(skipped.items())
        ]
    return (
        HEAD
        + "\n".join(rows)
        + "\n"
        + SNAPSHOTS
        + (SKIPPED + "\n".join(reasons) + "\n" if reasons else "")
    )


def machines_part(record: dict[str, Any]) -> str:
    """Return the part about machines."""
    rows = []
    for suite, found in sorted(record.items(), key=lambda item: int(item[1]["systemd"])):
        cuts = [found["cuts"].get(action, 0) for action in ("install", "try", "boot")]
        words = [found["systemd"], found["kernel"], found["iproute2"], suite, found["date"], *cuts]
        rows.append(f"| {' | '.join(map(str, words))} |\n")
    return MACHINES + "".join(rows)


MACHINES = """
## Machines

The nightly tests also boot a machine of each of these releases on its own kernel, from a disk, with
an address from DHCP. Debian 11's machine has no Python. STRICT holds a shadowed node there, the fix
lets it go, an update restarts nothing, and a removal leaves nothing. Then the machine's power is
cut at random moments of installations (`apply` or `install.sh`), trials and boots. At each next
boot, the node had entirely the old or entirely the new config, and started only if it was healthy
under that config:

| systemd | kernel | iproute2 | of Debian | on | cuts in an installation | in a trial | in a boot |
|---|---|---|---|---|---|---|---|
"""

TAIL = """
## Differences

Lookups differ between releases in three ways, and a [snapshot](../howto/snapshots.md) gets the
verdict of its own host's release:

- Before Linux 5.14, the first address of a subnet is a broadcast address.
- Up to Linux 6.1, and without custom rules, a lookup goes on to table `default` after a discarding
  route in table main. Linux 6.12.113 and 6.18.44 don't. Between them, it depends on the stable
  update.
- Up to Linux 6.18, deleting a policy rule separates the tables local and main. In 7.2, they stay
  one until a rule is added, so a host without the rule for one of them still finds the entries in
  it.

In Linux 5.10, the sysctl `net.ipv4.conf.all.ignore_routes_with_linkdown` has no effect, only those
of the interfaces.

While another process replaces an IPv6 route, Linux 7.2 finds no route for a moment. hostrouting
asks again; the check at boot retries a failure, too.
"""


def main(folder: Path) -> None:
    """Write the page to a directory."""
    kernels, booted = (
        json.loads((FOLDER / name).read_text()) for name in ("kernels.json", "machines.json")
    )
    (folder / "kernels.md").write_text(kernels_part(kernels) + machines_part(booted) + TAIL)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
