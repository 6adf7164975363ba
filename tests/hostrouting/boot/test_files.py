"""Tests that files are written atomically and that the lock prevents concurrent runs."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from file_trees import version_of

import phases
from hostrouting.boot import files
from hostrouting.boot.files import followed_folder, read_text, remove, rewrite, write_if_changed
from hostrouting.boot.locks import locked
from hostrouting.boot.render import fill
from hostrouting.model.errors import FileError
from phases import Cancelled, CancelScope
from phases.testing import FakeClock, RecordingObserver


def test_a_link_in_a_files_place_is_replaced(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    write_if_changed(other, "text")
    path.symlink_to(other)
    write_if_changed(path, "text")
    assert not path.is_symlink()
    assert other.read_text() == "text"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_owner_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, "text")
    os.chown(path, 65534, 65534)
    write_if_changed(path, "text")
    assert path.stat().st_uid == 0


def test_an_equal_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, "text")
    before = version_of(path)
    write_if_changed(path, "text")
    assert version_of(path) == before


def test_a_changed_file_is_replaced_without_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, "old")
    with path.open() as reader:
        write_if_changed(path, "new")
        assert (reader.read(), path.read_text()) == ("old", "new")
    path.chmod(0o600)
    write_if_changed(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, "old")
    blocked = tmp_path / "folder"
    blocked.mkdir()
    with pytest.raises(FileError, match=f"can't write {blocked}"):
        write_if_changed(blocked, "x")
    with pytest.raises(FileError, match=f"can't write {path}/below") as caught:
        write_if_changed(path / "below", "x")
    assert caught.value.errno == errno.ENOTDIR
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


SWAPS = {
    "a link": lambda path, other: path.symlink_to(other),
    "another file": lambda path, other: path.write_text("theirs"),
}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_rewrite_replaces_only_the_file_that_was_read(
    tmp_path: Path, swap: Callable[[Path, Path], object], is_linked: bool
) -> None:
    """The directory's owner replaces the file while root is editing it."""
    script, path, named = tmp_path / "script", tmp_path / "folder/file", tmp_path / "folder/named"
    path.parent.mkdir()
    write_if_changed(script, "#!/bin/sh\n", mode=0o755)
    path.write_text("old")
    named.symlink_to("file")

    def edit(file: BinaryIO) -> str:
        assert file.read() == b"old"
        path.unlink()
        swap(path, script)
        return "new"

    with pytest.raises(FileError):
        rewrite(named if is_linked else path, edit)
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("#!/bin/sh\n", 0o755)
    assert path.is_symlink() or path.read_text() == "theirs"
    assert {each.name for each in tmp_path.rglob("*")} == {"script", "folder", "file", "named"}


def test_a_rewrite_stays_in_the_opened_folder(tmp_path: Path) -> None:
    path, moved = tmp_path / "folder/file", tmp_path / "moved"
    path.parent.mkdir()
    path.write_text("old")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("theirs")

    def edit(_: BinaryIO) -> str:
        path.parent.rename(moved)
        path.parent.symlink_to("other")
        return "new"

    rewrite(path, edit)
    assert ((moved / "file").read_text(), (tmp_path / "other/file").read_text()) == (
        "new",
        "theirs",
    )
    assert [each.name for each in (tmp_path / "other").iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses symlinks")
@pytest.mark.parametrize("swapped", ["upper", "upper/middle", "upper/middle/folder"])
def test_a_rewrite_follows_no_link_made_since_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    path, folder = tmp_path / "upper/middle/folder/file", tmp_path / swapped
    path.parent.mkdir(parents=True)
    path.write_text("old")
    look = files._followed

    def look_and_swap(given: Path) -> Path:
        resolved = look(given)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
        return resolved

    monkeypatch.setattr(files, "_followed", look_and_swap)
    with pytest.raises(FileError, match=f"can't write {path}: "):
        rewrite(path, lambda _: "new")
    assert path.read_text() == "old"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_new_file_is_made_through_no_link_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    link = tmp_path / "user/link"
    link.parent.mkdir()
    link.symlink_to("../target")
    assert followed_folder(link / "new/config.json") == tmp_path / "target/new/config.json"
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(FileError, match="another user than root can change the symlink"):
        followed_folder(link / "new/config.json")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_rewrite_follows_only_links_that_root_alone_can_make(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("old")
    folder.mkdir()
    link, outer = folder / "config.json", tmp_path / "outer"
    link.symlink_to("../victim")
    outer.symlink_to(link)
    for path in (link, outer):
        rewrite(path, lambda _: "ours")
    assert (victim.read_text(), link.is_symlink()) == ("ours", True)

    def assert_refused() -> None:
        for path in (link, outer):
            with pytest.raises(FileError, match=f"can change the symlink {link}"):
                rewrite(path, lambda _: "theirs")

    folder.chmod(0o777)
    assert_refused()
    folder.chmod(0o755)
    os.chown(folder, 65534, 65534)
    assert_refused()
    os.chown(folder, 0, 0)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert_refused()
    assert victim.read_text() == "ours"
    rewrite(victim, lambda _: "new")


def test_a_rewrite_keeps_no_setuid_bit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o6755)
    rewrite(path, lambda _: "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_reading_and_removing_missing_files_is_not_an_error(tmp_path: Path) -> None:
    assert read_text(tmp_path / "none") is None
    assert not remove(tmp_path / "none")
    assert not remove(tmp_path / "no" / "folder")
    with pytest.raises(FileError, match="can't read"):
        read_text(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="can't remove .*: Directory not empty"):
        remove(tmp_path)
    assert remove(tmp_path / "folder")


def test_the_lock_is_that_of_flock_from_util_linux(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, CancelScope()):
        assert subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 1
    assert subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 0


def test_a_lock_is_no_link_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with (
        pytest.raises(FileError, match="can't open the lock"),
        locked(tmp_path / "lock", CancelScope()),
    ):
        raise AssertionError("it holds another file's lock")
    assert not (tmp_path / "victim").exists()


def test_a_wait_for_the_lock_ends_with_a_hint(tmp_path: Path) -> None:
    path, observer, scope = tmp_path / "lock", RecordingObserver(), CancelScope()

    @phases.task("second")
    def second(scope: CancelScope) -> None:
        with locked(path, scope):
            raise AssertionError("both hold the lock")

    with locked(path, CancelScope()):
        with pytest.raises(FileError, match="held it for 60 s.*\nhint: .*fuser"):
            phases.run(second, scope=CancelScope(clock=FakeClock()), observers=[observer])
        scope.cancel("enough")
        with pytest.raises(Cancelled):
            second.do(scope)
    (waiting,) = {str(event[2]) for event in observer.events if event[0] == "progress"}
    assert "waiting for another run to release" in waiting
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="can't open the lock"):
        phases.run(second)


def test_a_forgotten_placeholder_is_named() -> None:
    with pytest.raises(LookupError, match=r"static-routes.sh needs \w+ from each function"):
        fill("static-routes.sh")
