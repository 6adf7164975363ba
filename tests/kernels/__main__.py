"""Run the kernel tests on other kernels: ``./run kernels [SUITE]... [-- PYTEST-ARGUMENT...]``.

The results of whole runs are written to docs/explanation/kernels.json, from which ``./run docs`` makes a page.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from kernels.guest import run_on
from kernels.packages import SUITES, NoKernelError, find_or_fetch

RECORD = Path(__file__).parents[2] / "docs/explanation/kernels.json"

_TESTS = ("-m", "kernel and not boot and not ci", "-p", "no:cacheprovider", "--color=no", "--timeout", "600")


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
        if not results.exists():
            return code or 1
        found = {"release": kernel.release, "date": time.strftime("%Y-%m-%d"), **summary(results)}
        found["minutes"] = round((time.monotonic() - began) / 60)
        counts = f"{found['passed']} passed, {found['failed']} failed, {sum(found['skipped'].values())} skipped"
        print(f"Linux {kernel.release} (Debian {suite}): {counts}, {found['minutes']} min", flush=True)
        if not selected:
            record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
            RECORD.write_text(json.dumps(record | {suite: found}, indent=1, sort_keys=True) + "\n")
        return code


def summary(results: Path) -> dict[str, Any]:
    """Return the numbers of passed and failed tests in a JUnit file, and that of skipped ones for each reason."""
    failed, skipped, passed = 0, Counter[str](), 0
    for case in ElementTree.parse(results).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skip is not None:
            skipped[skip.get("message", "")] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": dict(skipped)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
