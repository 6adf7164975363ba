"""What a task of a neighbour works on: the node that it was given, or the kernel of this very host."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hostrouting.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.boot.host import Host

T = TypeVar("T")


def given_or_real(host: Host, given: T | None, real: Callable[[], T]) -> T:
    """A host's side that a task works on.

    Args:
        host: which.
        given: to the task; None: this kernel's.
        real: makes that.

    Raises:
        ConfigError: it wasn't given beside a layout of another root.
    """
    if given is not None:
        return given
    if not host.layout.is_this_host:
        raise ConfigError([("node", f"must be given beside a layout below {host.layout.root}: a real one, or a fake")])
    return real()
