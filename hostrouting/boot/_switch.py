"""Replace the gate's scripts and script list atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hostrouting.boot import files
from hostrouting.boot.gate import with_other_scripts
from hostrouting.boot.layout import Layout
from hostrouting.model.opening import translate_errors


def switch(layout: Layout, wanted: Mapping[Path, files.FileState | None]) -> None:
    """Replace the scripts that the gate runs, all at once.

    rename(2) replaces only one file at a time, but there are several scripts and a list. So a
    temporary list first names copies of the new scripts. The final list follows once the scripts
    themselves have been replaced. The gate never runs a mix of old and new scripts, not even after
    a crash.

    Args:
        wanted: the new state of each script, and of the list if it changes; None removes the file.

    Raises:
        FileError: a file can't be written or removed.
    """
    differing = _differing_scripts(layout, wanted)
    changed = {path: state for path, state in differing.items() if state is not None}
    new_list = wanted.get(layout.gate_list)
    if differing and new_list is not None and files.exists(layout.gate_list):
        _stage(layout, changed, new_list)
    for path, state in changed.items():
        put(path, state)
    if layout.gate_list in wanted:
        put(layout.gate_list, new_list)
    for path in differing:
        if path not in changed:
            files.remove(path)
    remove_old_stages(layout)


def _differing_scripts(
    layout: Layout,
    wanted: Mapping[Path, files.FileState | None],
) -> dict[Path, files.FileState | None]:
    return {
        path: state
        for path, state in wanted.items()
        if path != layout.gate_list and files.look_at(path) != state
    }


def put(path: Path, state: files.FileState | None) -> None:
    """Write a file with the given state. If the state is None, remove the file.

    Raises:
        FileError: the file can't be written or removed.
    """
    if state is not None and state.link is not None:
        files.remove(path)
        files.link(path, state.link)
    elif state is None or state.content is None:
        files.remove(path)
    else:
        files.write_if_changed(path, state.content, mode=state.mode)


def _stage(
    layout: Layout,
    changed: Mapping[Path, files.FileState],
    new_list: files.FileState,
) -> None:
    """Write the changed scripts to a new folder, and make the list name these copies."""
    _remove_unless_folder(layout.stages)
    with translate_errors(f"make a folder in {layout.stages}"):
        files.make_folders(layout.stages)
        stage = layout.stages / os.urandom(4).hex()
        stage.mkdir(0o700)
    copies = {}
    for path, state in changed.items():
        copy = stage / path.name
        put(copy, state)
        copies[layout.relative(path)] = layout.relative(copy)
    text = with_other_scripts((new_list.content or b"").decode(), copies)
    files.write_if_changed(layout.gate_list, text, mode=new_list.mode)


def _remove_unless_folder(path: Path) -> None:
    """Remove the path, unless it is a real folder. A symlink to a folder is removed."""
    if files.is_present(path) and (path.is_symlink() or not path.is_dir()):
        files.remove(path)


def _remove_stage(stage: Path) -> None:
    _remove_unless_folder(stage)
    with translate_errors(f"remove {stage}"), suppress(FileNotFoundError):
        for copy in stage.iterdir():
            copy.unlink()
        stage.rmdir()


def remove_old_stages(layout: Layout) -> None:
    """Remove the staging folders of killed and failed runs, which the list doesn't name."""
    _remove_unless_folder(layout.stages)
    listed = files.read_text(layout.gate_list) or ""
    for stage in files.matching(layout.stages, "*"):
        if layout.relative(stage) not in listed:
            _remove_stage(stage)
    files.remove_empty_folder(layout.stages)
