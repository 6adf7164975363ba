"""Write the page about other kernels from the results of ``./run kernels``:  ./run docs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "explanation"
RECORD = FOLDER / "kernels.json"
RELEASES = {"bullseye": "5.10", "bookworm": "6.1", "trixie": "6.12", "sid": "7.2"}

HEAD = """\
<!-- Made by docs/make_kernels.py from kernels.json; edits are lost. -->

# On other kernels

`./run kernels` runs the tests of `./run test` that use the kernel on the kernels of Debian's releases. These are
processes (User-Mode Linux) with the kernel's own code for routes, rules, devices and namespaces, on this machine's
files and Python. They have one CPU, no hardware, and lack some options, such as NAT and SRv6.

| kernel | of Debian | on | passed | failed | skipped | not run | remark |
|---|---|---|---|---|---|---|---|
"""

SKIPPED = """
A skipped test needs something that the kernel lacks:

| kernel | tests | reason |
|---|---|---|
"""


def page(record: dict[str, Any]) -> str:
    """Return the page."""
    rows, reasons = [], []
    for suite, found in sorted(record.items(), key=lambda item: [*map(int, item[1]["release"].split("."))]):
        passed, failed, skipped = found["passed"], found["failed"], sum(found["skipped"].values())
        release, others, note = found["release"], found.get("notRun", 0), found.get("note", "")
        rows.append(f"| {release} | {suite} | {found['date']} | {passed} | {failed} | {skipped} | {others} | {note} |")
        reasons += [f"| {release} | {count} | {reason} |" for reason, count in sorted(found["skipped"].items())]
    missing = [f"{release} ({suite})" for suite, release in RELEASES.items() if suite not in record]
    partly = f"\nOn {' and '.join(missing)}, only some of the tests have run so far.\n" if missing else ""
    return HEAD + "\n".join(rows) + "\n" + partly + (SKIPPED + "\n".join(reasons) + "\n" if reasons else "") + TAIL


TAIL = """
Lookups differ between releases in three ways, and a [snapshot](../howto/snapshots.md) gets the verdict of its own
host's release:

- Before Linux 5.14, the first address of a subnet is a broadcast address.
- Up to Linux 6.1, and without custom rules, a lookup goes on to table `default` after a discarding route in table main.
  Linux 6.12.113 and 6.18.44 don't. Between them, it depends on the stable update.
- Up to Linux 6.18, deleting a policy rule separates the tables local and main. In 7.2, they stay one until a rule is
  added, so a host without the rule for one of them still finds the entries in it.

While another process replaces an IPv6 route, Linux 7.2 finds no route for a moment. hostrouting asks again; the check
at boot retries a failure, too.
"""


def main(folder: Path) -> None:
    """Write the page to a directory."""
    (folder / "kernels.md").write_text(page(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
