"""The one tree of errors that hostrouting raises.

::

    HostRoutingError
    ├── ConfigError          the config is wrong: every problem at once, each with its path
    ├── RouteError           a route can't be resolved, installed or seen to win; the kernel refused to answer
    ├── UnitError            systemd refused, or an instance doesn't hold what it should
    ├── FileError            a file, the lock or the manifest can't be read or written
    └── RouteOverlapError    STRICT: an expected CIDR is shadowed, or nothing could be judged (in ``overlap``)

The plug-in in ``azure`` hangs its own on the same root.

Errors of the layers below (pyroute2's ``NetlinkError``, ``OSError``) are translated where that layer is used
and never leak. ``phases.Cancelled`` and ``phases.TimedOut`` pass through: they belong to the runner.
"""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hostrouting.model.changes import Changes


class HostRoutingError(Exception):
    """Anything that hostrouting couldn't do: what was attempted, on what, why it failed, what to do next.

    Args:
        message: the whole sentence, for a person.
        errno: the kernel's reason as a number, where the kernel gave one.
    """

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno

    @cached_property
    def changes(self) -> Changes:
        """What the run had changed by then and hasn't put back; the run itself puts it here."""
        from hostrouting.model.changes import Changes

        return Changes()

    @property
    def is_not_permitted(self) -> bool:
        """Whether the kernel refused for want of privileges."""
        return self.errno in (errnos.EPERM, errnos.EACCES, errnos.EROFS)


class ConfigError(HostRoutingError):
    """A config that breaks its rules.

    Args:
        problems: (path, message) of each problem, in the order of the document. The path reads like
            ``hostRouting.staticRoutes.routes[2].gateway``; it is empty where the whole value is wrong.
    """

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        self.problems: tuple[tuple[str, str], ...] = tuple(problems)
        super().__init__("\n".join(f"{path}: {text}" if path else text for path, text in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[tuple[str, str], ...]], dict[str, Any]]:
        return type(self), (self.problems,), vars(self)


class RouteError(HostRoutingError):
    """Routes couldn't be read, resolved, installed, removed, or seen to win."""


class UnitError(HostRoutingError):
    """Systemd refused, or a unit doesn't hold what was installed."""


class FileError(HostRoutingError):
    """A file of ours couldn't be read or written."""

    @classmethod
    def of(cls, attempt: str, error: OSError) -> FileError:
        """The error of an attempt ("write /run/x") that the operating system refused.

        Args:
            attempt: what was attempted and on what, as a verb phrase.
            error: the refusal.

        Returns:
            An error with the reason in words and its ``errno``.
        """
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "; run as root" if error.errno in (errnos.EPERM, errnos.EACCES) else ""
        return cls(f"can't {attempt}: {reason}{hint}", errno=error.errno)
