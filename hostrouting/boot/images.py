"""Validate the root of an image. A path in it must not lead to a file of this host."""

from __future__ import annotations

import os
from pathlib import Path

from hostrouting.boot.files import matching
from hostrouting.boot.installed_units import UNIT_PATH
from hostrouting.boot.layout import CHECK, ROUTES, WATCH, Layout
from hostrouting.model.errors import ConfigError
from hostrouting.model.opening import translate_errors

# The folders of systemd's own units, relative to an image's root. An image with neither isn't
# mounted, or only a part of it is.
_SYSTEM = ("usr/lib/systemd/system", "lib/systemd/system")


def image_layout(root: str | os.PathLike[str]) -> Layout:
    """Return the layout of a mounted image.

    Raises:
        ConfigError: the folder doesn't exist, doesn't contain an OS, contains a symlink that
            escapes it, or is this host's own root.
        FileError: this user can't look at the folder.
    """
    layout = Layout(root)
    with translate_errors(f"look at {layout.root}"):
        _refuse_unsuitable(layout)
    return layout


def _refuse_unsuitable(layout: Layout) -> None:
    if not layout.root.is_dir():
        raise ConfigError([("root", f"there is no folder {layout.root}; is the image mounted?")])
    _refuse_this_hosts_folders(layout)
    for path in _touched(layout):
        _refuse_links(layout, path)
    # A partition for /usr that is mounted alone has lib/systemd/system in its root, too, but no
    # usr.
    has_usr = (layout.root / "usr").is_dir()
    if not (has_usr and any((layout.root / name).is_dir() for name in _SYSTEM)):
        lacking = f"{layout.root} has no system: it lacks {_SYSTEM[0]}"
        raise ConfigError([("root", f"{lacking}; is the image mounted?")])


def _our_folders(layout: Layout) -> tuple[Path, ...]:
    return layout.config.parent, layout.manifest.parent, layout.good.parent


def _refuse_this_hosts_folders(layout: Layout) -> None:
    """Raise an error if the root, or a folder that we write to, is this host's own."""
    # A folder may be a bind mount of this host's folder.
    written = (layout.units, layout.protocol_names.parent, layout.run_dir)
    for path in (layout.root, *_our_folders(layout), *written):
        running = layout.relative(path)
        if os.path.exists(running) and path.exists() and path.samefile(running):  # noqa: PTH110
            raise ConfigError(
                [("root", f"{path} is this host's own; leave the root out to work on this host")]
            )


def _touched(layout: Layout) -> list[Path]:
    """Return the folders that hostrouting uses, and its files in them. The metrics are left out."""
    touched = [*map(layout.of, UNIT_PATH), layout.protocol_names, layout.run_dir]
    for folder in _our_folders(layout):
        touched += [folder, *matching(folder, "*")]
    for kind in ("d", "wants", "requires"):
        touched += matching(layout.units, f"*.{kind}")
    touched += [layout.unit(part) for part in (ROUTES, CHECK, WATCH)]
    for folder in matching(layout.units, "*.service.d"):
        touched += matching(folder, "*hostrouting*.conf")
    return touched


def _refuse_links(layout: Layout, path: Path) -> None:
    root = layout.root
    for link in (*reversed(path.parents), path):
        # The root itself may be a symlink.
        if root not in link.parents or not link.is_symlink():
            continue
        target = link.readlink()
        if str(target) == os.devnull:  # a masked unit or drop-in
            continue
        # An absolute symlink is valid once the image is booted, but for now it points into this
        # host.
        if target.is_absolute() or not link.resolve().is_relative_to(root.resolve()):
            fix = "make it a relative link inside the image, or run apply in a chroot of it"
            raise ConfigError(
                [("root", f"{link} is a link to {target}, which leads out of the image: {fix}")]
            )
