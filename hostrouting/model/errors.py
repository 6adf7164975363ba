"""The one tree of errors that hostrouting raises.

::

    HostRoutingError
    ├── ConfigError          the config is wrong: every problem at once, each with its path
    ├── RouteError           a route can't be resolved, installed or seen to win; the kernel refused to answer
    ├── UnitError            systemd refused, or an instance doesn't hold what it should
    ├── FileError            a file, the lock or the manifest can't be read or written
    └── RouteOverlapError    STRICT: an expected CIDR is shadowed, or nothing could be judged (in ``overlap``)

A plug-in derives its own errors from the same root.

Errors of the layers below (pyroute2's own ``NetlinkError``, ``OSError``) are translated where that layer is used
and never escape. ``phases.Cancelled`` and ``phases.TimedOut`` pass through: they belong to the runner.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hostrouting.model.changes import Changes

NO_CHANGES = Changes()


class HostRoutingError(Exception):
    """Anything that hostrouting failed to do.

    Args:
        message: what was attempted, on what, and why it failed.
        hint: what to do next; empty if the message leaves nothing to add.
        errno: the kernel's reason as a number, if it gave one.
        changes: the changes so far that weren't undone.
    """

    def __init__(
        self, message: str, *, hint: str = "", errno: int | None = None, changes: Changes = NO_CHANGES
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.errno = errno
        self.changes = changes

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    @property
    def is_not_permitted(self) -> bool:
        """Return whether the kernel refused because of missing privileges."""
        return self.errno in (errnos.EPERM, errnos.EACCES, errnos.EROFS)


class ConfigError(HostRoutingError):
    """A config that breaks its rules.

    Args:
        problems: (path, message) of each problem, in the order of the document. The path reads like
            ``hostRouting.staticRoutes.routes[2].gateway``; it is empty if the whole value is wrong.
    """

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        super().__init__("\n".join(f"{path}: {text}" if path else text for path, text in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[tuple[str, str], ...]], dict[str, Any]]:
        return type(self), (self.problems,), vars(self)


class Refusal(NamedTuple):
    """The reason why one route of several is refused.

    Args:
        message: what was attempted, on which route, and why it failed.
        hint: what to do next; empty if the message leaves nothing to add.
    """

    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class RouteError(HostRoutingError):
    """Routes couldn't be read, resolved, installed, removed, or verified."""

    @classmethod
    def of(cls, refusals: Sequence[Refusal], *, most: int | None = None, errno: int | None = None) -> RouteError:
        """Return one error for several refusals: a line for each, and a line for each different hint.

        Args:
            refusals: at least one.
            most: how many to name; None: all of them.
            errno: the kernel's reason as a number, if it gave one.
        """
        named = refusals[:most]
        lines = [refusal.message for refusal in named]
        if rest := len(refusals) - len(named):
            lines.append(f"and {rest:,} more")
        hints = dict.fromkeys(refusal.hint for refusal in named if refusal.hint)
        return cls("\n".join(lines), hint="\n".join(hints), errno=errno)


class UnitError(HostRoutingError):
    """systemd refused, or a unit doesn't have the installed settings."""


class FileError(HostRoutingError):
    """A file of ours couldn't be read or written."""

    @classmethod
    def of(cls, attempt: str, error: OSError) -> FileError:
        """Return the error for an attempt ("write /run/x") that the operating system refused.

        Args:
            attempt: what was attempted and on what, as a verb phrase.
            error: the operating system's error.

        Returns:
            An error with the reason in words and the ``errno``.
        """
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "run as root" if error.errno in (errnos.EPERM, errnos.EACCES) else ""
        return cls(f"can't {attempt}: {reason}", hint=hint, errno=error.errno)
