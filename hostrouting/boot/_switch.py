"""Replace the gate's scripts and its list together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hostrouting.boot import files
from hostrouting.boot.gate import with_other_scripts
from hostrouting.boot.layout import Layout
from hostrouting.model.errors import FileError


def switch(layout: Layout, wanted: Mapping[Path, files.FileState | None]) -> None:
    """Make the gate run other scripts, switching all of them at the same moment.

    A rename replaces only one file, but there are several scripts and a list. So while the scripts are being replaced,
    the list names copies of them. The gate never runs old and new scripts together, not even after a crash.

    Args:
        layout: where the host's files are.
        wanted: the state of each script, and of the list if it differs. A file whose state is None is removed.

    Raises:
        FileError: a file can't be written or removed.
    """
    scripts = {path: state for path, state in wanted.items() if path != layout.gate_list}
    differing = {path: state for path, state in scripts.items() if files.look_at(path) != state}
    new_list = wanted.get(layout.gate_list)
    stage = None
    if differing and new_list is not None and files.exists(layout.gate_list):
        stage = _stage(layout, differing, new_list)
    for path, state in differing.items():
        if state is not None:
            put(path, state)
    if layout.gate_list in wanted:
        put(layout.gate_list, new_list)
    for path, state in differing.items():
        if state is None:
            files.remove(path)
    if stage is not None:
        _remove_stage(stage)


def put(path: Path, state: files.FileState | None) -> None:
    """Give a path the content and mode of a state, or remove the file if the state is None.

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


def _stage(layout: Layout, differing: Mapping[Path, files.FileState | None], new_list: files.FileState) -> Path:
    """Copy the scripts that differ to a new folder and make the list name the copies. Return the folder."""
    _clear(layout.stages)
    with files.translate_errors(f"make a folder in {layout.stages}"):
        files.make_folders(layout.stages)
        stage = Path(tempfile.mkdtemp(dir=layout.stages))
    try:
        copies = {path: stage / path.name for path, state in differing.items() if state is not None}
        for path, copy in copies.items():
            put(copy, differing[path])
        places = {layout.relative(path): layout.relative(copy) for path, copy in copies.items()}
        text = with_other_scripts((new_list.content or b"").decode(), places)
        files.write_if_changed(layout.gate_list, text, mode=new_list.mode)
    except BaseException:
        # The first error is more useful than an error of the cleanup; the next run removes the leftovers.
        with suppress(FileError):
            _remove_stage(stage)
        raise
    return stage


def _remove_stage(stage: Path) -> None:
    """Remove a folder of staged scripts, and then its parent folder if that is empty."""
    with files.translate_errors(f"remove {stage}"):
        shutil.rmtree(stage)
    files.remove_empty_folder(stage.parent)


def _clear(folder: Path) -> None:
    """Remove whatever stands where one of our folders belongs, for example a link to another folder."""
    if files.is_present(folder) and (folder.is_symlink() or not folder.is_dir()):
        files.remove(folder)


def remove_old_stages(layout: Layout) -> None:
    """Remove the staged scripts that killed runs left behind."""
    _clear(layout.stages)
    listed = files.read_text(layout.gate_list) or ""
    for stage in files.matching(layout.stages, "*"):
        if stage.is_symlink() or not stage.is_dir():
            files.remove(stage)
        elif layout.relative(stage) not in listed:
            _remove_stage(stage)
    files.remove_empty_folder(layout.stages)
