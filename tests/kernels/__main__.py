"""Run the kernel tests on other kernels: ``./run kernels [SUITE]... [-- PYTEST-ARGUMENT...]``.

The results are recorded in docs/contributing/kernels.json if whole files of tests have run. This
machine judges the snapshots of the hosts in those tests, too, which must not differ from the hosts'
own verdicts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kernels.guest import run_on
from kernels.hosts import VARIABLE, differences
from kernels.packages import SUITES, NoKernelError, find_or_fetch
from kernels.results import record, results_of, total

_USAGE = f"""\
usage: ./run kernels [SUITE...] [-- PYTEST-ARGUMENT...]

Runs the kernel tests on Debian's kernels as processes, up to an hour each. If no test is selected,
or whole files, docs/contributing/kernels.json gets their results.

SUITE is one of {", ".join(SUITES)} (default: all). PYTEST-ARGUMENT selects tests:
  ./run kernels bullseye -- tests/kernel/test_facts.py -k broadcast"""

_TESTS = (
    *(
        "-m",
        "kernel and not boot and not ci",
        "-p",
        "no:cacheprovider",
        "--color=no",
        "--timeout",
        "600",
    ),
    "--hypothesis-profile=kernels",
    "--junitxml=/run/shared/results.xml",
)


def main(arguments: Sequence[str]) -> int:
    """Run the tests on each kernel in turn, and return 0 if they pass on all of them."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    names = list(arguments)
    selected = names[names.index("--") + 1 :] if "--" in names else []
    names = names[: names.index("--")] if "--" in names else names
    if unknown := [name for name in names if name not in SUITES]:
        print(f"kernels: {unknown[0]} isn't one of {', '.join(SUITES)}", file=sys.stderr)
        return 64
    codes = [_run_tests(suite, selected) for suite in names or SUITES]
    return max(codes)


def _run_tests(suite: str, selected: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="hostrouting-kernels-") as folder:
        junit, hosts = Path(folder, "results.xml"), Path(folder, "hosts")
        hosts.mkdir()
        env = {"HOSTROUTING_REQUIRE": "kernel", VARIABLE: "/run/shared/hosts"}
        began = time.monotonic()
        try:
            kernel = find_or_fetch(suite)
            code = run_on(
                kernel, (".venv/bin/python", "-m", "pytest", *_TESTS, *selected), Path(folder), env
            )
        except NoKernelError as error:
            print(f"kernels: {error}", file=sys.stderr)
            return 1
        if not junit.exists():
            return code or 1
        judged, wrong = differences(hosts)
        results = results_of(junit, judged)
    minutes = round((time.monotonic() - began) / 60)
    print(f"Linux {kernel.release} (Debian {suite}): {total(results)}, {minutes} min")
    print(
        f"snapshots judged here: {judged.total()}, {len(wrong)} of them wrong",
        *wrong,
        sep="\n",
        flush=True,
    )
    if all(Path(each).exists() for each in selected):
        record(suite, kernel.release, results, is_whole=not selected)
    return code or bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
