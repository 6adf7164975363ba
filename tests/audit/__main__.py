"""The command line of the audit; see ``./run audit --help``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from audit.page import as_table, made, write_docs
from audit.run import audit
from hostrouting.cli.output import complain, dim, say
from hostrouting.kernel.namespace import NamespaceError, enter_namespace

if TYPE_CHECKING:
    from audit.figures import Figures

MILLION = 1_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run the audit, print the results, and return 1 if there are any mistakes."""
    options = parse(arguments)
    try:
        enter_namespace()  # the hosts have their own namespaces, and this one protects the machine from mistakes
    except NamespaceError as error:
        complain(f"an audit needs network namespaces: {error}")
        return 1
    figures = audit(options.lookups, options.seed, progress)
    figures.made = made(options.lookups, options.seed)
    say(as_table(figures))
    if options.docs:
        write_docs(figures, options.docs / "explanation")
    return 0 if figures.is_right else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run audit",
        description="Makes random hosts, each in a fresh network namespace, and holds every word that hostrouting says "
        "of them to the kernel, address by address: the live verdict, that on two snapshots and of the boot script, what "
        "the proposed fix leaves and changes, and by which interface the packets of real sockets leave. Some hosts "
        "change all the time. This machine's own network is "
        "never touched. Ends with a table; the exit status is 1 if anything is wrong, and then the first hosts on "
        "which it is are printed as the ip commands that make them.",
        epilog="A million lookups take about ten minutes on two cores. The same seed makes the same hosts.",
    )
    parser.add_argument(
        "lookups", metavar="LOOKUPS", nargs="?", type=int, default=MILLION, help="how many at least (1000000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides about all chance (1)")
    parser.add_argument(
        "--docs", metavar="FOLDER", type=Path, help="write the page and its figures into its explanation/"
    )
    return parser.parse_args(arguments)


def progress(figures: Figures) -> None:
    hosts = sum(share.worlds for share in figures.shares)
    complain(
        dim(f"{figures.lookups:,} lookups on {hosts:,} hosts, {figures.mistaken} mistakes, {figures.seconds:.0f} s")
    )


if __name__ == "__main__":
    sys.exit(main())
