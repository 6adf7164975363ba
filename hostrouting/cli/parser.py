"""What a word of the command line is, and the parser and the arguments that words share."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from hostrouting.cli.options import UsageError
from hostrouting.cli.output import columns
from hostrouting.cli.running import EXIT_FAILURE

if TYPE_CHECKING:
    from collections.abc import Callable


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, as argparse's own, which loads shutil and so three kinds of compression."""

    def __init__(self, prog: str) -> None:
        width = os.environ.get("COLUMNS", "")
        super().__init__(prog, width=(int(width) if width.isdecimal() else columns(sys.stdout) or 80) - 2)


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the arguments."""
        raise UsageError(f"{self.format_usage()}{self.prog}: {message}; try {self.prog} --help")


class Word(NamedTuple):
    """A word of the command line, explained by the docstring of what it runs.

    Args:
        run: carries it out; of a word that others follow: tells which.
        takes: what gives the parser its arguments, one after the other.
        failed: the exit code of a failure that has none of its own.
        is_followed: whether others follow.
    """

    run: Callable[..., Any]
    takes: tuple[Callable[[Parser], None], ...] = ()
    failed: int = EXIT_FAILURE
    is_followed: bool = False


def add_config(parser: argparse.ArgumentParser) -> None:
    """Give a parser the argument that names the config."""
    # Layout().config, which a line of help is no reason to load.
    default = "/etc/aks-flex-node/config.json"
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=f"a JSON file; {default} if none is named")


def add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    """Give a parser the option that says for whom the output is."""
    choices = ("text", "json", *more)
    help_ = "for people, for programs, as a monitoring plugin, or a picture" if more else "for people, or for programs"
    parser.add_argument("--output", choices=choices, default="text", help=help_)
