"""Images: a folder that holds a system, and whose links don't lead onto the host that works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.boot.layout import CONFIG_DIR, UNIT_DIR
from hostrouting.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.layout import Layout


# Where systemd has its own units; an image that isn't mounted, or not wholly, has neither.
_SYSTEM = ("usr/lib/systemd/system", "lib/systemd/system")


def refuse_what_is_no_image(layout: Layout) -> None:
    """Refuse a folder that isn't an image, or in which a file of ours would land elsewhere.

    Raises:
        ConfigError: it is this host's own root, isn't there or holds no system; or a link leads out of it.
    """
    root = layout.root
    if layout.is_this_host:
        raise ConfigError([("root", "is this host's own; leave it out to work on this host")])
    if not root.is_dir():
        raise ConfigError([("root", f"there is no folder {root}; is the image mounted?")])
    for path in _touched(layout):
        _refuse_links(layout, path)
    if not any((root / name).is_dir() for name in _SYSTEM):
        raise ConfigError([("root", f"{root} holds no system: it has no {_SYSTEM[0]}; is the image mounted?")])


def _touched(layout: Layout) -> Iterator[Path]:
    """All folders that files are read from or written into, and the files that are no units."""
    yield layout.root / _SYSTEM[0]
    yield layout.protocol_names
    for folder in (CONFIG_DIR, UNIT_DIR):
        yield layout.root / folder
    yield from sorted((layout.root / CONFIG_DIR).glob("*"))
    for kind in ("d", "wants", "requires"):
        yield from sorted(layout.units.glob(f"*.{kind}"))


def _refuse_links(layout: Layout, path: Path) -> None:
    root = layout.root
    for step in (*reversed(path.relative_to(root).parents), path.relative_to(root)):
        link = root / step
        if not link.is_symlink():
            continue
        target = link.readlink()
        # Absolute ones would be right in the running image, and lead onto this host now.
        if target.is_absolute() or not link.resolve().is_relative_to(root.resolve()):
            mend = "make it a relative link inside the image, or run apply in a chroot of it"
            raise ConfigError([("root", f"{link} is a link to {target}, which leads out of the image: {mend}")])
