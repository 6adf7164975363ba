"""Run the kernel tests on other kernels: ``./run kernels [SUITE]... [-- PYTEST-ARGUMENT...]``."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from kernels.guest import run_on
from kernels.packages import SUITES, NoKernelError, find_or_fetch

_TESTS = ("-m", "kernel and not boot and not ci", "-p", "no:cacheprovider", "--color=no", "--timeout", "600")
_WAYS = ("failure", "error", "skipped")


def main(arguments: Sequence[str]) -> int:
    """Run the tests on each kernel in turn, and return 0 if they pass on all of them."""
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
        results = Path(folder, "results.xml")
        argv = (".venv/bin/python", "-m", "pytest", *_TESTS, "--junitxml=/run/shared/results.xml", *selected)
        began = time.monotonic()
        try:
            kernel = find_or_fetch(suite)
            code = run_on(kernel, argv, Path(folder), {"HOSTROUTING_REQUIRE": "kernel"})
        except NoKernelError as error:
            print(f"kernels: {error}", file=sys.stderr)
            return 1
        minutes = (time.monotonic() - began) / 60
        if results.exists():
            print(f"Linux {kernel.release} (Debian {suite}): {_counts(results)}, {minutes:.1f} min", flush=True)
        return code


def _counts(results: Path) -> str:
    """Return the number of tests in each outcome, for example ``1190 passed, 12 skipped``."""
    outcomes = Counter[str]()
    for case in ElementTree.parse(results).iter("testcase"):
        outcomes[next((way for way in _WAYS if case.find(way) is not None), "passed")] += 1
    names = {"failure": "failed", "error": "errors"}
    return ", ".join(f"{number} {names.get(way, way)}" for way, number in sorted(outcomes.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
