"""The command-line entry point, with error reporting and exit codes.

``arguments`` parses the arguments, and ``commands`` and ``checking`` run the commands.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import phases
from hostrouting.boot.host import Host
from hostrouting.cli.arguments import parse
from hostrouting.cli.changes import changes_lines
from hostrouting.cli.exit_codes import EXIT_FAILURE, EXIT_OUTPUT, EXIT_USAGE, exit_of_error
from hostrouting.cli.inputs import host_asked_for
from hostrouting.cli.output import OutputError, bad, complain, dim, say
from hostrouting.cli.report import nagios_unknown
from hostrouting.cli.running import Result, say_json, say_result
from hostrouting.model.errors import ConfigError, FileError, HostRoutingError
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.text import clean

_LAST_WORDS_SECONDS = 0.3


def main(argv: Sequence[str] | None = None, *, host: Host | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments without the program name; ``sys.argv[1:]`` by default.
        host: the host to operate on; the local host by default.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words, host)
    except OutputError as error:
        complain(f"hostrouting: done, but {error}")
        return EXIT_OUTPUT
    except SystemExit as end:  # --help, --version
        return end.code if isinstance(end.code, int) else EXIT_USAGE


def _run(words: Sequence[str], host: Host | None) -> int:
    options = argparse.Namespace(failed=EXIT_FAILURE)
    try:
        options = parse(words)
        with _logged_to_stderr() if options.verbose else nullcontext():
            result = options.run(options, host or Host())
            if not isinstance(result, Result):
                return int(result)
            say_result(options, result)
            return result.code
    except MemoryError:
        error = HostRoutingError("there isn't enough memory; see ulimit -v")
        return _tell(error, options, _asked_output(words), None)
    except (HostRoutingError, phases.Cancelled, OSError) as error:
        # The terminal may be stopped. A cancelled command must not wait for it.
        last_words = _LAST_WORDS_SECONDS if isinstance(error, phases.Cancelled) else None
        return _tell(_as_ours(error, words), options, _asked_output(words), last_words)


def _as_ours(
    error: HostRoutingError | phases.Cancelled | OSError,
    words: Sequence[str],
) -> HostRoutingError:
    """Return the error that ended the command as a HostRoutingError, with its changes and notes."""
    if isinstance(error, HostRoutingError):
        return error
    if isinstance(error, phases.Cancelled):
        has_changes = bool(getattr(error, "changes", None))
        left = "what was changed by then stays" if has_changes else "nothing is left half-done"
        ours = HostRoutingError(f"stopped: {error.reason}; {left}")
    else:
        # Most OSErrors are translated where they occur. An OSError that arrives here comes from an
        # import, which may fail anywhere.
        named = f" ({error.filename})" if error.filename is not None else ""
        ours = FileError.of(f"carry out {shlex.join(['hostrouting', *words])}{named}", error)
    vars(ours).update(vars(error))
    return ours


def _tell(
    error: HostRoutingError,
    options: argparse.Namespace,
    output: str,
    last_words: float | None,
) -> int:
    """Report a command's failure in the requested format, and return the exit code."""
    # Only a terminal may lose output. The output to a pipe or a file is always complete.
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    patience = last_words if is_terminal else None
    said = _message_of(error).splitlines()
    hints = error.hint.splitlines()
    # A monitoring daemon expects its own format, even of a failure.
    if output == "nagios":
        code, line = nagios_unknown("; ".join([*said, *hints]))
        say(line, patience)
        return code
    for warning in getattr(error, "warnings", ()):
        complain(f"hostrouting: {warning}", last_words)
    for line in said:
        complain(f"{bad('hostrouting:')} {clean(line)}", last_words)
    for hint in hints:
        complain(f"{bad('hostrouting:')} {dim('hint:')} {clean(hint)}", last_words)
    if output == "preflight":
        from hostrouting.cli.preflight import unmade_preflight

        say(to_json_text(unmade_preflight()).rstrip(), patience)
    if output == "json":
        say_json(host_asked_for(options) | _document_of(error, said), patience)
    elif error.changes:
        say("\n".join(changes_lines(error.changes)), patience)
    return exit_of_error(error, options.failed)


def _message_of(error: HostRoutingError) -> str:
    """Return an error's message and notes, except for the path of the failed task."""
    notes = getattr(error, "__notes__", ())
    ours = (note for note in notes if not isinstance(note, phases.PathNote))
    return "\n".join([error.message, *ours])


def _asked_output(words: Sequence[str]) -> str:
    """Return the value of ``--output``, even if the arguments can't be parsed."""
    for word, following in pairwise((*words, "")):
        if word == "--output":
            return following
        if word.startswith("--output="):
            return word.removeprefix("--output=")
    return "text"


def _document_of(error: HostRoutingError, said: Sequence[str]) -> dict[str, Any]:
    """Return a failure as JSON: the changes so far, the check's report if it ran, and the error."""
    document = error.changes.to_json()
    if (report := getattr(error, "report", None)) is not None:
        document["overlap"] = report.to_json()
        document["warnings"] = [*getattr(error, "warnings", ())]
    document |= {"error": "\n".join(said), "hint": error.hint or None}
    if isinstance(error, ConfigError):
        document["problems"] = [
            {"path": path, "message": message} for path, message in error.problems
        ]
    return document


# Fields that `phases` adds to log records.
_DATA = ("task", "path", "status", "duration", "error")


@contextmanager
def _logged_to_stderr() -> Iterator[None]:
    """Log task records and their extra fields to stderr within the block."""
    import logging

    form = " ".join(["%(levelname)s %(name)s: %(message)s", *(f"{key}=%({key})s" for key in _DATA)])

    class ToStderr(logging.Handler):
        """A handler that doesn't block: a process that waits for its terminal misses signals."""

        def emit(self, record: logging.LogRecord) -> None:
            complain(self.format(record), patience=0)

    handler = ToStderr()
    handler.setFormatter(logging.Formatter(form, defaults=dict.fromkeys(_DATA, "-")))
    logger = logging.getLogger("phases")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
