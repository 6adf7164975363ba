"""All errors that hostrouting raises, as one tree.

::

    HostRoutingError
    ├── ConfigError          the config is wrong; it lists every problem with its path
    ├── RouteError           a route can't be resolved or installed, or doesn't win; or the kernel can't be queried
    ├── UnitError            systemd refused, or the gate doesn't hold for an instance
    ├── FileError            a file, the lock or the manifest can't be read or written
    └── RouteOverlapError    STRICT: an expected CIDR is shadowed, or nothing could be judged (in ``overlap``)

A plug-in derives its own errors from the same root.

Errors of the layers below (``NetlinkError`` of pyroute2, ``OSError``) are translated where that layer is used, and
never escape. ``phases.Cancelled`` and ``phases.TimedOut`` pass through, because they belong to the runner.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hostrouting.model.changes import Changes

NO_CHANGES = Changes()


class HostRoutingError(Exception):
    """The base of all errors about something that hostrouting failed to do.

    Args:
        message: what was attempted, on what, and why it failed.
        hint: what to do next, or an empty string if there is nothing to add to the message.
        errno: the kernel's reason as a number, if it gave one.
        changes: the changes so far that haven't been undone.
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
    """An error about a config that breaks its rules.

    Args:
        problems: the path and message of each problem, in the order of the document. A path looks like
            ``hostRouting.staticRoutes.routes[2].gateway``; it is empty if the whole value is wrong.
    """

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        super().__init__("\n".join(f"{path}: {text}" if path else text for path, text in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[tuple[str, str], ...]], dict[str, Any]]:
        return type(self), (self.problems,), vars(self)


class Refusal(NamedTuple):
    """The reason why one of several routes is refused.

    Args:
        message: what was attempted, on which route, and why it failed.
        hint: what to do next, or an empty string if there is nothing to add to the message.
    """

    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class RouteError(HostRoutingError):
    """An error because routes couldn't be read, resolved, installed, removed or verified."""

    @classmethod
    def of(cls, refusals: Sequence[Refusal], *, most: int | None = None, errno: int | None = None) -> RouteError:
        """Return one error for several refusals, with a line for each refusal and for each different hint.

        Args:
            refusals: the refusals, of which there is at least one.
            most: how many refusals to name; by default all of them.
            errno: the kernel's reason as a number, if it gave one.
        """
        named = refusals[:most]
        lines = [refusal.message for refusal in named]
        if rest := len(refusals) - len(named):
            lines.append(f"and {rest:,} more")
        hints = dict.fromkeys(refusal.hint for refusal in named if refusal.hint)
        return cls("\n".join(lines), hint="\n".join(hints), errno=errno)


class UnitError(HostRoutingError):
    """An error because systemd refused, or because a unit doesn't have the installed settings."""


class FileError(HostRoutingError):
    """An error because one of our files couldn't be read or written."""

    @classmethod
    def of(cls, attempt: str, error: OSError) -> FileError:
        """Return the error for an attempt ("write /run/x") that the operating system refused.

        Args:
            attempt: what was attempted and on what, as a verb phrase.
            error: the operating system's error.

        Returns:
            An error with the reason as text and with the ``errno``.
        """
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "run as root" if error.errno in (errnos.EPERM, errnos.EACCES) else ""
        return cls(f"can't {attempt}: {reason}", hint=hint, errno=error.errno)
