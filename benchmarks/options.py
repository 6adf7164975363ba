"""What can be asked for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.growth import GROWTHS
from benchmarks.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["parse"]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line, or end with what is wrong with it."""
    names = [*(row.name for row in ROWS), *GROWTHS]
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description="Measures hostrouting beside the fastest other ways to do the same, each time in a fresh network "
        "namespace, and prints a table of ratios.",
        epilog=f"NAME is one of: {' '.join(names)}",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="measure only this")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once each: only to see that everything runs")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--docs", metavar="FOLDER", type=Path, help="write the page with its pictures and figures into its explanation/"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"there is no {unknown[0]}; there are: {' '.join(names)}")
    if options.docs and (options.names or options.quick):
        parser.error("the page is of a whole run: --docs takes neither NAME nor --quick")
    return options
