"""The layout of help texts, and the parser class that reports errors as exceptions."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import groupby
from typing import NoReturn

from hostrouting.cli.inputs import UsageError
from hostrouting.cli.output import columns, say
from hostrouting.model.text import shown

# The placeholder for a command's name.
COMMAND = "COMMAND"

# Other programs' words for our commands.
_MEANT = {"install": "apply", "status": "doctor", "uninstall": "remove"}

_WIDEST_COLUMNS = 120


class Help(argparse.HelpFormatter):
    """A formatter of help that fits the terminal, splits no words, and keeps lines of examples.

    argparse's own formatter asks shutil for the width, which imports three compression modules.
    """

    def __init__(self, prog: str) -> None:
        width = os.environ.get("COLUMNS", "")
        asked = int(width) if width.isdecimal() else columns(sys.stdout) or 80
        super().__init__(prog, width=min(asked, _WIDEST_COLUMNS) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_prose, block in groupby(text.splitlines(), lambda line: line[:1].strip() != ""):
            for paragraph in [" ".join(block)] if is_prose else block:
                lines += _wrapped(paragraph, width, "" if is_prose else "      ") or [""]
        return "\n".join(indent + line for line in lines)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ``UsageError`` instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` with a pointer to --help."""
        raise UsageError(f"{message}; try {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices or action.metavar != COMMAND:
            super()._check_value(action, value)
            return
        import difflib

        known = [*action.choices, "--help", "--version"]
        near = difflib.get_close_matches(str(value), known, n=1)
        meant = _MEANT.get(str(value)) or next(iter(near), "")
        self.error(f"{shown(value)} isn't a command{f'; did you mean {meant}?' if meant else ''}")

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002
        # --help and --version call this. If the output is a closed pipe, argparse's own method
        # fails in Python 3.10.
        say(message.removesuffix("\n"))
