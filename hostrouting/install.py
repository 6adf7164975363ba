"""A plan -> the host, all of it or nothing; and back."""

from __future__ import annotations

import contextlib
import errno as errnos
import json
import os
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs

from hostrouting import files
from hostrouting.errors import FileError, HostRoutingError, RouteError
from hostrouting.model import NextHop, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hostrouting.backends import RouteBackend
    from hostrouting.layout import Layout
    from hostrouting.model import Route, RouteFailure
    from hostrouting.plan import RoutePlan
    from phases import CancelScope

__all__ = ["Undo", "apply_routes", "has_files", "install_files", "uninstall_files"]

T = TypeVar("T")

# One bulk call can't be interrupted: small enough that a cancel is seen soon, large enough to be fast.
BULK_ROUTES = 256

_NAMED_FAILURES_MAX = 5

PROTOCOL_NAMES = f"# hostrouting: the routes that it installs\n{int(Protocol.HOSTROUTING)}\thostrouting\n"

_REASONS = {
    errnos.EEXIST: ("another route has its destination and metric", "look at: ip -4 route show {destination}"),
    errnos.ENETUNREACH: ("its gateway can't be reached", "look at: ip -4 route get {gateway}"),
    errnos.ENODEV: ("there is no such device", "look at: ip link"),
    errnos.ENETDOWN: ("its device is down", "set it up: ip link set {dev} up"),
    errnos.EPERM: ("not permitted", "run as root (CAP_NET_ADMIN)"),
    errnos.ESRCH: ("there is no such route", "look at: ip -4 route show {destination}"),
    errnos.EINVAL: ("the kernel takes it to be invalid", "check its gateway and source"),
    errnos.ENOMEM: ("the kernel has no memory for it", "free some and run again"),
}


class Undo:
    """The way back: what was changed, last first.

    Each step is pushed *before* the change that it takes back, so it must do no harm if that never happened.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        """Remember a step."""
        self._steps.append(step)

    def roll_back(self) -> list[str]:
        """Take every step, also after one has failed.

        Returns:
            What couldn't be put back, in words.
        """
        problems: list[str] = []
        while self._steps:
            try:
                self._steps.pop()()
            except HostRoutingError as error:
                problems.append(str(error))
        return problems


# --- routes ------------------------------------------------------------------------------------------------------


def apply_routes(plan: RoutePlan, backend: RouteBackend, scope: CancelScope, undo: Undo) -> None:
    """Add, then replace, then remove; so that no destination is without its route in between.

    Args:
        plan: what to change.
        backend: the kernel.
        scope: looked at between bulk calls.
        undo: gets the way back.

    Raises:
        RouteError: the kernel refused; what was changed until then is for ``undo``.
    """
    for add in _bulks(plan.add, scope):
        undo.push(partial(_write, backend.delete, add, "take back", fine=errnos.ESRCH))
        _write(backend.add, add, "add")
    for replace in _bulks(plan.replace, scope):
        undo.push(partial(_write, backend.replace, [item.old for item in replace], "put back"))
        _write(backend.replace, [item.new for item in replace], "replace")
    for remove in _bulks(plan.remove, scope):
        undo.push(partial(_write, backend.add, remove, "put back", fine=errnos.EEXIST))
        _write(backend.delete, remove, "remove", fine=errnos.ESRCH)


def _bulks(items: Sequence[T], scope: CancelScope) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BULK_ROUTES):
        scope.check()
        yield items[start : start + BULK_ROUTES]


def _write(
    call: Callable[[Sequence[Route]], tuple[RouteFailure, ...]],
    routes: Sequence[Route],
    verb: str,
    *,
    fine: int | None = None,
) -> None:
    failures = [failure for failure in call(routes) if failure.errno != fine]
    if not failures:
        return
    lines = [_explain(verb, failure) for failure in failures[:_NAMED_FAILURES_MAX]]
    if len(failures) > len(lines):
        lines.append(f"and {len(failures) - len(lines)} more")
    raise RouteError("\n".join(lines), errno=failures[0].errno)


def _explain(verb: str, failure: RouteFailure) -> str:
    reason, advice = _REASONS.get(failure.errno, (os.strerror(failure.errno).lower(), "look at: dmesg"))
    hop = failure.route.hops[0] if failure.route.hops else NextHop()
    advice = advice.format(destination=failure.route.destination, gateway=hop.gateway or "GATEWAY", dev=hop.dev)
    return f"can't {verb} {failure.route}: {reason} (kernel: {failure.message}); {advice}"


# --- files -------------------------------------------------------------------------------------------------------


def install_files(layout: Layout, undo: Undo) -> None:
    """Write the files that go with our routes, and the manifest that names them, where they differ.

    The manifest comes first: whatever a crash leaves behind is named in it.

    Args:
        layout: where.
        undo: gets the way back.

    Raises:
        FileError: one can't be written.
    """
    wanted = {layout.protocol_names: PROTOCOL_NAMES}
    manifest = Manifest.load(layout)
    paths = [layout.manifest, *wanted]
    manifest = Manifest(
        files=tuple(sorted({*manifest.files, *(layout.relative(path) for path in wanted)})),
        folders=tuple(sorted({*manifest.folders, *_missing_folders(layout, paths)})),
    )
    for path, text in {layout.manifest: manifest.to_text(), **wanted}.items():
        before = files.read_text(path)
        undo.push(partial(_restore, layout, manifest, path, before))
        files.write_if_changed(path, text)


def uninstall_files(layout: Layout) -> tuple[str, ...]:
    """Take back every file that the manifest names, the folders that were made for them, then the manifest.

    Args:
        layout: where. A path that this layout doesn't know is left alone, whatever the manifest says.

    Returns:
        The paths that were removed, as the running system sees them.

    Raises:
        FileError: one can't be removed, or the manifest can't be read; a later run goes on from there.
    """
    manifest = Manifest.load(layout)
    removed = [
        layout.relative(path)
        for path in (layout.protocol_names, layout.manifest)
        if (path == layout.manifest or layout.relative(path) in manifest.files) and files.remove(path)
    ]
    _remove_folders(layout, manifest)
    return tuple(removed)


def has_files(layout: Layout) -> bool:
    """Whether an earlier run installed any file."""
    return files.read_text(layout.manifest) is not None


@attrs.frozen
class Manifest:
    """What was installed: absolute paths as the running system sees them.

    Args:
        files: that were written, besides the manifest itself.
        folders: that were made for them.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @classmethod
    def load(cls, layout: Layout) -> Manifest:
        """The manifest of a layout; an empty one if nothing was installed."""
        text = files.read_text(layout.manifest)
        if text is None:
            return cls()
        try:
            document = json.loads(text)
            return cls(files=tuple(map(str, document["files"])), folders=tuple(map(str, document["folders"])))
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"can't read the manifest {layout.manifest}: {error!r}; it names what to take back: mend it, or remove "
                "it to forget what was installed"
            ) from error

    def to_text(self) -> str:
        """The file's content."""
        document = {"schema": 1, "files": list(self.files), "folders": list(self.folders)}
        return json.dumps(document, indent=2) + "\n"


def _missing_folders(layout: Layout, paths: Sequence[Path]) -> list[str]:
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(layout.root)}
    return [layout.relative(folder) for folder in sorted(folders) if not folder.exists()]


def _remove_folders(layout: Layout, manifest: Manifest) -> None:
    """Remove the folders that were made, innermost first, unless somebody has put something into them."""
    ours = {folder for path in (layout.protocol_names, layout.manifest) for folder in path.parents}
    for name in sorted(manifest.folders, reverse=True):
        folder = layout.root / name.lstrip("/")
        if folder in ours and folder != layout.root:
            with contextlib.suppress(OSError):  # ENOTEMPTY: somebody else uses it now
                folder.rmdir()


def _restore(layout: Layout, manifest: Manifest, path: Path, before: str | None) -> None:
    if before is not None:
        files.write_if_changed(path, before)
    elif files.remove(path):
        _remove_folders(layout, manifest)
