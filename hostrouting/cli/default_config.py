"""Protect an installation from a default CONFIG that asks for something else.

The default CONFIG is AKSFlexNode's config. If an operator has applied another file, the default
CONFIG differs from the installation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import attrs

from hostrouting.boot.files import exists, is_present, read_text
from hostrouting.boot.host import Host
from hostrouting.boot.incomplete import incomplete
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import differing_parts
from hostrouting.config.routing import SECTION, Config
from hostrouting.model.errors import ConfigError, HostRoutingError


def _refuse_to_remove_routes(host: Host) -> None:
    """Raise an error if the kernel has routes of ours, although nothing is installed."""
    if not host.is_image and host.our_routes():
        message = f"it has no key {SECTION}, so applying it would remove our routes"
        error = ConfigError([(str(host.layout.config), message)])
        error.hint = "to keep them, name their CONFIG; to remove them: hostrouting remove"
        raise error


def refuse_to_remove(document: Mapping[str, Any], host: Host) -> None:
    """Raise an error if the default CONFIG lacks our key, but our routes or scripts are there.

    After a reset by AKSFlexNode, which removes all scripts, there is no error: what is left of the
    installation only holds back starts.

    Args:
        document: the default CONFIG's document.
        host: the host or the image.

    Raises:
        ConfigError: CONFIG lacks our key, and the installation still has a script, or nothing is
            installed but routes in the kernel.
        FileError: the manifest can't be read.
        RouteError: the kernel can't be queried.
    """
    layout = host.layout
    if SECTION in document:
        return
    manifest = Manifest.load(layout)
    parts = manifest.parts
    if not parts:
        _refuse_to_remove_routes(host)
    installed = [name for name, part in parts.items() if part.is_gated]
    if not any(exists(layout.script(name)) for name in installed):
        return
    root = f" --root {quote(str(layout.root))}" if host.is_image else ""
    left = incomplete(layout, f"hostrouting apply{root} CONFIG", f"hostrouting remove{root}")
    if left is not None:
        error = ConfigError([(str(layout.config), f"it has no key {SECTION}, and {left.message}")])
        error.hint = left.hint
        raise error
    message = f"it has no key {SECTION}, so applying it would remove {' and '.join(installed)}"
    error = ConfigError([(str(layout.config), message)])
    error.hint = (
        "to keep what is installed, and record it in CONFIG: "
        f"{_recording(host, str(layout.manifest))}\n"
        f"to remove it: hostrouting remove{root}"
    )
    raise error


def refuse_in_place(document: Mapping[str, Any], config: Config, host: Host) -> None:
    """Raise an error if a fix must not be written into the default CONFIG.

    Applying the default CONFIG must change nothing but routes, rules and kept interfaces.

    Args:
        document: the default CONFIG's document.
        config: the config in the document.
        host: the host with the installation.

    Raises:
        ConfigError: CONFIG lacks our key, or asks for something else than is installed.
        FileError: the manifest can't be read.
    """
    layout = host.layout
    manifest = Manifest.load(layout)
    has_config = manifest.parts and not manifest.is_being_removed
    source = str(layout.manifest) if has_config else "CONFIG"
    if SECTION in document:
        static = manifest.config.static_routes
        others = differing_parts(manifest, attrs.evolve(config, static_routes=static), layout)
        if not (has_config and others):
            return
        problem = f"it asks for something else than is installed: {' and '.join(others)}"
        hint = (
            f"if it is wanted: hostrouting fix --in-place {quote(str(layout.config))}\n"
            f"to write there what is installed instead: {_recording(host, source)}"
        )
    else:
        problem = f"it has no key {SECTION}, so a fix in it would install nothing else"
        hint = (
            f"write there what is wanted: {_recording(host, source)}\n"
            "or name the CONFIG to write to: hostrouting fix --in-place CONFIG"
        )
    error = ConfigError([(str(layout.config), problem)])
    error.hint = hint
    raise error


def refuse_manifest(path: Path | str, host: Host) -> None:
    """Raise an error if a fix is to be written into the manifest, which only a run writes.

    Raises:
        ConfigError: the path is the manifest's.
    """
    if Path(path).resolve() != host.layout.manifest.resolve():
        return
    error = ConfigError([(str(path), "it says what is installed, and only apply writes it")])
    error.hint = "to write the fix into the default CONFIG: hostrouting fix --in-place"
    raise error


def note_on_default(host: Host, applied: str = "") -> str:
    """Return a sentence if the default CONFIG asks for something else than is installed, or "".

    Args:
        host: the host or the image.
        applied: the path of the applied config. With an empty path, the sentence names the
            manifest, which contains the same keys.

    Raises:
        FileError: the manifest can't be read.
    """
    layout = host.layout
    if not is_present(layout.config):
        return ""
    manifest = Manifest.load(layout)
    try:
        if read_text(layout.config) is None:
            return ""
        differing = differing_parts(manifest, Config.load(layout.config), layout)
    except HostRoutingError as error:
        what = "the default CONFIG, which commands read without an argument"
        return f"{what}, can't be used: {error.clause}"
    if not differing:
        return ""
    if not manifest.parts or manifest.is_being_removed:
        asks = f"{layout.config}, the default CONFIG, asks for something else"
        return f"{asks}, and nothing is installed; to install it: hostrouting apply"
    how = _recording(host, applied or str(layout.manifest))
    return (
        f"{layout.config}, the default CONFIG, asks for something else; "
        f"to record there what is installed: {how}"
    )


def note_on_gate(config: Config, host: Host) -> tuple[str, ...]:
    """Return a warning if there is a gate, and it will install other routes than CONFIG's.

    Raises:
        FileError: the manifest can't be read.
    """
    installed = Manifest.load(host.layout).config
    if not installed.is_gated or installed.static_routes == config.static_routes:
        return ()
    note = (
        "a gate is installed: the next start that it checks, or the watcher, restores the"
        " installed routes; to install CONFIG's: hostrouting apply"
    )
    return (note,)


def _recording(host: Host, source: str) -> str:
    source = f"./{source}" if source.startswith("-") else source
    return f"hostrouting config set {quote(str(host.layout.config))} --from {quote(source)}"
