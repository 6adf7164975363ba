"""Recognize what a stopped removal, or a lost manifest, has left of an installation."""

from __future__ import annotations

from hostrouting.boot.files import exists
from hostrouting.boot.layout import Layout
from hostrouting.boot.manifest import Manifest
from hostrouting.model.values import frozen


@frozen
class Incomplete:
    """An installation that can be taken back or removed, but not used as it is.

    Args:
        message: what is known about it, as clauses.
        hint: the commands that take it back or remove it, one a line.
    """

    message: str
    hint: str


def incomplete(layout: Layout, apply: str, remove: str = "hostrouting remove") -> Incomplete | None:
    """Return what is left of an installation without a config; None if there is no such thing.

    Args:
        layout: the paths of the host's files.
        apply: the command that installs the wanted config.
        remove: the command that removes everything.

    Raises:
        FileError: the manifest can't be read.
    """
    manifest = Manifest.of_host(layout)
    if not manifest.is_being_removed:
        return None
    message = "a run was stopped while it removed everything"
    if not exists(layout.manifest):
        message = "the manifest is gone, but files that it listed are there"
    gates = filter(exists, manifest.gates(layout))
    gated = " ".join(sorted({path.parent.name.removesuffix(".d") for path in gates}))
    if gated:
        # A removal takes the check off the gate's list first.
        left = f"each start of {gated} still runs what is left of the gate"
        message = f"{message}, and {left}, which may admit it unchecked"
    else:
        message = f"{message}, and the gate is gone: no start is held back"
    return Incomplete(message, f"to take it back: {apply}\nto remove what is left: {remove}")
