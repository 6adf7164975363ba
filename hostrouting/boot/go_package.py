"""The Go package's symlinks, which hostrouting removes."""

from __future__ import annotations

from pathlib import Path

from hostrouting.boot import files
from hostrouting.boot.layout import CHECK, ROUTES, Layout


def go_package_links(layout: Layout) -> list[Path]:
    """Return the symlinks that make other units require or want our oneshots, including dangling ones."""
    # Don't glob for the symlink itself: before Python 3.13, glob skips dangling symlinks, and in an image all of these
    # are dangling.
    folders = [folder for kind in ("requires", "wants") for folder in files.matching(layout.units, f"*.service.{kind}")]
    links = [folder / f"{name}.service" for folder in folders for name in (ROUTES, CHECK)]
    return [link for link in links if files.is_present(link)]
