"""The exit codes of all commands, except for those of a monitoring plugin (``report.nagios``)."""

from __future__ import annotations

from hostrouting.cli.inputs import UsageError
from hostrouting.model.errors import ConfigError, HostRoutingError
from hostrouting.overlap.findings import RouteOverlapError, Verdict

EXIT_FAILURE = 1
EXIT_CHECK_UNKNOWN = 2
EXIT_PLAN_CHANGES = 2

# sysexits.h
EXIT_USAGE = 64
EXIT_OUTPUT = 74
EXIT_NOT_PERMITTED = 77
EXIT_CONFIG = 78

EXIT_OF_VERDICT = {
    Verdict.OK: 0,
    Verdict.OVERLAP: EXIT_FAILURE,
    Verdict.UNKNOWN: EXIT_CHECK_UNKNOWN,
}


def exit_of_error(error: HostRoutingError, failed: int) -> int:
    """Return the exit code for an error.

    Args:
        error: the error that ended the command.
        failed: the command's code for failures; for an error without a code of its own.
    """
    if isinstance(error, UsageError):
        return EXIT_USAGE
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    if isinstance(error, RouteOverlapError) and error.findings:
        return EXIT_FAILURE
    return EXIT_NOT_PERMITTED if error.is_not_permitted else failed


def exit_of_result(is_good: bool | None) -> int:
    """Return the exit code for a result; None stands for an unknown one."""
    if is_good is None:
        return EXIT_CHECK_UNKNOWN
    return 0 if is_good else EXIT_FAILURE
