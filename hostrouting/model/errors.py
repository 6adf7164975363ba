"""The hierarchy of errors raised by hostrouting.

::

    HostRoutingError
    ├── ConfigError          the config is invalid; lists every problem and its path
    ├── RouteError           a route can't be resolved, installed or verified, or a query fails
    ├── UnitError            systemd refused an operation, or the gate doesn't block an instance
    ├── FileError            a file, the lock or the manifest can't be read or written
    └── RouteOverlapError    STRICT: an expected CIDR fails the check, or can't be judged

A plug-in derives its own errors from ``HostRoutingError``, too.

A ``NetlinkError`` or ``OSError`` is translated into one of these errors where it occurs.
``phases.Cancelled`` and ``phases.TimedOut`` propagate unchanged, because they belong to the runner.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hostrouting.model.changes import Changes
from hostrouting.model.text import shortened

NO_CHANGES = Changes()

NAMED_MAX = 16
"""Maximum number of routes that an error lists."""


def with_hint(message: str, hint: str) -> str:
    """Return a message, and a line ``hint: TEXT`` for each line of the hint."""
    return "\n".join([message, *(f"hint: {line}" for line in hint.splitlines())])


class HostRoutingError(Exception):
    """Base class for all hostrouting errors.

    Args:
        message: the failed operation, its target, and why it failed.
        hint: suggested next step, or an empty string if there is none. It may name commands, such
            as ``hostrouting apply``; a program runs a task instead, such as ``Configure``.
        errno: errno from the kernel, if any.
        changes: changes that the failed run hasn't rolled back, or of which this isn't known.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        errno: int | None = None,
        changes: Changes = NO_CHANGES,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.errno = errno
        self.changes = changes

    def __str__(self) -> str:
        return with_hint(self.message, self.hint)

    @property
    def clause(self) -> str:
        """Return the message and the hint, joined by a semicolon, for use within a sentence."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    @property
    def is_not_permitted(self) -> bool:
        """Return whether the kernel denied permission."""
        return self.errno in (errnos.EPERM, errnos.EACCES, errnos.EROFS)


class ConfigError(HostRoutingError):
    """The error for an invalid config.

    Args:
        problems: path and message for each problem, in document order. Paths look like
            ``hostRouting.staticRoutes.routes[2].gateway``; the path is empty if the whole value is
            invalid.
    """

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        given: object = problems
        if isinstance(given, str):
            raise TypeError(f"ConfigError takes pairs of a path and a message, not {given!r}")
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        super().__init__(
            "\n".join(f"{path}: {text}" if path else text for path, text in self.problems)
        )

    def __reduce__(
        self,
    ) -> tuple[type[ConfigError], tuple[tuple[tuple[str, str], ...]], dict[str, Any]]:
        return type(self), (self.problems,), vars(self)


class Refusal(NamedTuple):
    """The reason why one of several routes was refused.

    Args:
        message: the failed operation, the route, and why it failed.
        hint: suggested next step, or an empty string if there is none.
        asks_fix: whether ``hostrouting fix`` says what helps.
    """

    message: str
    hint: str = ""
    asks_fix: bool = False

    def __str__(self) -> str:
        return with_hint(self.message, self.advice)

    @property
    def advice(self) -> str:
        """Return the hint for an error of another command than ``hostrouting fix``."""
        return f"hostrouting fix says what helps; {self.hint}" if self.asks_fix else self.hint


class RouteError(HostRoutingError):
    """The error for routes that couldn't be read, resolved, installed, removed or verified."""

    _refusals: tuple[Refusal, ...] = ()

    @classmethod
    def of(cls, refusals: Sequence[Refusal], *, errno: int | None = None) -> RouteError:
        """Combine refusals into one error with a line for each refusal and each distinct hint.

        Args:
            refusals: the refusals; must not be empty. Only the first ``NAMED_MAX`` are listed.
            errno: errno from the kernel, if any.
        """
        message = shortened([refusal.message for refusal in refusals], "\n", NAMED_MAX)
        advice = [refusal.advice for refusal in refusals[:NAMED_MAX] if refusal.advice]
        error = cls(message, hint="\n".join(dict.fromkeys(advice)), errno=errno)
        error._refusals = (*refusals,)
        return error

    def within_fix(self) -> RouteError:
        """Return the error for ``hostrouting fix``, which doesn't advise to run that."""
        if not any(refusal.asks_fix for refusal in self._refusals):
            return self
        bare = [refusal._replace(asks_fix=False) for refusal in self._refusals]
        return RouteError.of(bare, errno=self.errno)


class UnitError(HostRoutingError):
    """The error for a unit that isn't set up as needed, or an operation that systemd refused."""


class FileError(HostRoutingError):
    """The error for one of our files that couldn't be read or written."""

    @classmethod
    def of(cls, attempt: str, error: OSError) -> FileError:
        """Return the error for an operation (such as "write /run/x") that failed with an OSError.

        Args:
            attempt: the operation and its target, as a verb phrase.
            error: the error raised by the operating system.
        """
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "run as root" if error.errno in (errnos.EPERM, errnos.EACCES) else ""
        return cls(f"can't {attempt}: {reason}", hint=hint, errno=error.errno)
