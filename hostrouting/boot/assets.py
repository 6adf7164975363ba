"""Read the templates of scripts and units, which are files of this distribution."""

from __future__ import annotations

import sys
from pathlib import Path

from hostrouting.model.opening import translate_errors


def read_asset(package: str, name: str) -> str:
    """Return the text of a file in a package's ``scripts`` folder, without line breaks at its end.

    Args:
        package: the name of a package that is loaded.
        name: the file's name.

    Raises:
        FileError: the file can't be read.
    """
    # Importing importlib.resources takes longer than reading all templates.
    path = Path(str(sys.modules[package].__file__)).with_name("scripts") / name
    with translate_errors(f"read {path}"):
        return path.read_text(encoding="utf-8").rstrip("\n")
