"""The command line: how every run ends. Its words are in ``arguments``, what the commands do in ``commands``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING

import phases
from hostrouting.cli import output, page
from hostrouting.cli.arguments import parse
from hostrouting.cli.options import UsageError
from hostrouting.cli.running import EXIT_FAILURE
from hostrouting.model.errors import ConfigError, HostRoutingError
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from hostrouting.boot.host import Host

__all__ = ["main"]

# sysexits.h
EXIT_USAGE, EXIT_OUTPUT, EXIT_NOT_PERMITTED, EXIT_CONFIG = 64, 74, 77, 78


def main(argv: Sequence[str] | None = None, *, host: Host | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after the program's name; None: the process's.
        host: what to work on; None: this host.

    Returns:
        The exit code.
    """
    failed = EXIT_FAILURE
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        failed = options.failed
        with _told_all() if options.verbose else nullcontext():
            code: int = options.run(options, host)
            return code
    except UsageError as error:
        if _is_for_nagios(sys.argv[1:] if argv is None else argv):
            return _fail_for_nagios(str(error).splitlines()[-1])
        output.complain(str(error))
        return EXIT_USAGE
    except ConfigError as error:
        return _fail(error, EXIT_CONFIG)
    except HostRoutingError as error:
        return _fail(error, EXIT_NOT_PERMITTED if error.is_not_permitted else failed)
    except phases.Cancelled as error:
        return _fail(error, failed)
    except OSError as error:
        # Ours are HostRoutingErrors by now: this is standard output, and what was asked for has been done.
        output.complain(f"hostrouting: done, but can't write the output: {error.strerror}")
        return EXIT_OUTPUT
    except SystemExit as end:  # --help, --version
        return end.code if isinstance(end.code, int) else EXIT_USAGE


def _is_for_nagios(argv: Sequence[str]) -> bool:
    """Whether a plugin's answer is expected, whatever is wrong with the other arguments."""
    words = list(argv)
    return "--output=nagios" in words or any(pair == ("--output", "nagios") for pair in pairwise(words))


def _fail_for_nagios(reason: str) -> int:
    from hostrouting.cli.nagios import NAGIOS_UNKNOWN, nagios_unknown

    output.say(nagios_unknown(reason))
    return NAGIOS_UNKNOWN


def _told_all() -> AbstractContextManager[None]:
    from hostrouting.cli.verbose import logged_to_stderr

    return logged_to_stderr()


def _fail(error: BaseException, code: int) -> int:
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("in task ")]
    what = f"stopped: {error.reason}; nothing is left half-done" if isinstance(error, phases.Cancelled) else str(error)
    for line in "\n".join([what, *notes]).splitlines():
        output.complain(f"{page.bad('hostrouting:')} {clean(line)}")
    return code
