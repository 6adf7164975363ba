"""Read files, symlinks and folders, and write them atomically and durably.

OS errors are raised as ``FileError``.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from hostrouting.boot.python import is_changeable
from hostrouting.model.errors import FileError
from hostrouting.model.opening import only_regular, translate_errors
from hostrouting.model.values import frozen

_FOLDER_MODE = 0o755

# --- reads ----------------------------------------------------------------------------------------


def exists(path: Path) -> bool:
    """Return whether a path exists; a dangling symlink counts as missing.

    Raises:
        FileError: stat(2) fails for a reason other than a missing path, for example because a name
            is too long.
    """
    state = None
    with translate_errors(f"look at {path}", errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        state = path.stat()
    return state is not None


def is_present(path: Path) -> bool:
    """Return whether a path exists, even as a dangling symlink.

    Raises:
        FileError: as for ``exists``.
    """
    return os.path.islink(path) or exists(path)  # noqa: PTH114 - Path.is_symlink may raise an OSError


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return a folder's entries that match a glob pattern; none if there is no such folder.

    Path.glob isn't used, because in Python 3.13 it treats unreadable folders as empty.

    Raises:
        FileError: the folder can't be read.
    """
    with (
        translate_errors(f"look through {folder}"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
    ):
        # Make a Path only for entries that match. For all entries of a unit folder, this would take
        # longer than the rest of a run without changes.
        return [folder / name for name in sorted(fnmatch.filter(os.listdir(folder), pattern))]  # noqa: PTH208
    return []


def read_text(path: Path) -> str | None:
    """Return the content of a file; None if the file doesn't exist.

    Raises:
        FileError: the file exists but can't be read.
    """
    state = read_state(path)
    return None if state is None else state[0].decode("utf-8", "surrogateescape")


def read_state(path: Path) -> tuple[bytes, int] | None:
    """Return a file's content and permission bits; None if the file doesn't exist.

    Raises:
        FileError: the file exists but can't be read.
    """
    with (
        translate_errors(f"read {path}"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        open(path, "rb", opener=only_regular) as file,
    ):
        return file.read(), os.fstat(file.fileno()).st_mode & 0o7777
    return None


@frozen
class FileState:
    """The state of a path.

    Args:
        content: the content of the file (following a symlink), or None for a folder or a dangling
            symlink.
        mode: the permission bits.
        is_ours: whether the path is a regular file (not a symlink) of the right owner.
        link: the symlink's target; None if the path isn't a symlink.
    """

    content: bytes | None
    mode: int
    is_ours: bool = True
    link: str | None = None


def look_at(path: Path, root: Path | None = None) -> FileState | None:
    """Return the state of a path; None if nothing is there.

    Args:
        path: the path to look at.
        root: a folder whose owner is the right one for files; by default, the current user is.

    Raises:
        FileError: the path exists but can't be read.
    """
    with (
        translate_errors(f"read {path}"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
    ):
        state = path.lstat()
        owner = os.geteuid() if root is None else root.stat().st_uid
        is_ours = stat.S_ISREG(state.st_mode) and state.st_uid == owner
        found = None if stat.S_ISDIR(state.st_mode) else read_state(path)
        content, mode = found or (None, stat.S_IMODE(state.st_mode))
        link = target(path) if stat.S_ISLNK(state.st_mode) else None
        return FileState(content, mode, is_ours, link)
    return None


# --- changes --------------------------------------------------------------------------------------


def write_if_changed(path: Path, text: str | bytes, *, mode: int = 0o644) -> None:
    """Atomically write a file with the given content and mode, unless it is already up to date.

    The file never has partial content, not even after a crash, because rename(2) is atomic. The
    folder is synced, because a power failure could otherwise undo the rename (see fsync(2)).

    Nothing is written if the file already has this content and mode, and the current user owns it.
    The umask is ignored. A symlink is replaced, not followed.

    Args:
        path: the file to write; missing parent folders are created.
        text: the content; strings are encoded as UTF-8 with ``surrogateescape``.
        mode: the permission bits.

    Raises:
        FileError: the file can't be written, and keeps its old content.
    """
    content = _encoded(text)
    if look_at(path) == FileState(content, mode):
        return
    with translate_errors(f"write {path}"):
        make_folders(path.parent)
        _replace(path, content, mode)
        _sync(path.parent)


def rewrite(path: Path, edit: Callable[[BinaryIO], str | None]) -> bool:
    """Atomically replace the content of another program's file, keeping its mode and owner.

    If the file's owner also owns the folder, the owner can replace the file with a symlink at any
    time. So symlinks are resolved only once. Then the folders of the resolved path are opened one
    after the other, without following symlinks, and all other steps use the last folder's
    descriptor. As root, only symlinks that root has made are followed, because another user's
    symlink may lead to any file.

    Args:
        path: the file, or a symlink to it.
        edit: a function that takes the open file and returns the new content, or None to leave the
            file unchanged.

    Returns:
        False if the file was left unchanged.

    Raises:
        FileError: the file can't be read or written, or another file has replaced it in the
            meantime. The file keeps its old content.
    """
    with translate_errors(f"write {path}"):
        resolved = _followed(path) if os.geteuid() == 0 else path.resolve(strict=True)
        with _opened_without_links(resolved.parent) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(only_regular(resolved.name, flags, dir_fd=folder), "rb") as file:
                text = edit(file)
                if text is None:
                    return False
                state = os.fstat(file.fileno())
                current = os.stat(resolved.name, dir_fd=folder, follow_symlinks=False)
                if not os.path.samestat(state, current):
                    raise FileError(f"can't write {path}: it was replaced by another file")
                # Drop setuid, setgid and sticky bits, because the new content doesn't come from
                # the owner.
                mode = state.st_mode & 0o777
                owner = (state.st_uid, state.st_gid)
                _replace(Path(resolved.name), _encoded(text), mode, owner, folder=folder)
                os.fsync(folder)
    return True


def followed_folder(path: Path) -> Path:
    """Return a new file's path without symlinks. ``rewrite`` would follow each of these symlinks.

    The file's folder may be missing, too.

    Raises:
        FileError: another user may have made a symlink on the path.
    """
    if os.geteuid() != 0:
        return path
    with translate_errors(f"write {path}"):
        there = next(folder for folder in path.absolute().parents if folder.exists())
        return _followed(there) / path.absolute().relative_to(there)


def _followed(path: Path) -> Path:
    """Return a path with resolved symlinks. Refuse symlinks that another user may have made.

    Raises:
        FileError: a symlink, or its folder, belongs to another user, or others can write there.
        OSError: a part of the path doesn't exist.
    """
    path.resolve(strict=True)  # raises an error if symlinks lead in a circle
    folder = Path("/")
    steps = [*reversed(path.absolute().parts[1:])]
    while steps:
        step = folder / steps.pop()
        state = step.lstat()
        if not stat.S_ISLNK(state.st_mode):
            folder = Path(os.path.normpath(step))
            continue
        above = folder.stat()
        if state.st_uid != 0 or above.st_uid != 0 or is_changeable(above):
            raise FileError(
                f"can't write {path}: another user than root can change the symlink {step}",
                hint="name the file that is meant",
            )
        target = step.readlink()
        folder = Path("/") if target.is_absolute() else folder
        steps += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return folder


def _replace(
    path: Path,
    content: bytes,
    mode: int,
    owner: tuple[int, int] | None = None,
    *,
    folder: int | None = None,
) -> None:
    temporary = path.with_name(f"{_temporary_prefix(path)}{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0755, regardless of the umask.

    With a umask of 0, any user could replace files that the gate runs as root. With a umask of 077,
    other users couldn't read the markers.

    Raises:
        OSError: a folder can't be created.
    """
    if folder.is_dir():
        return
    make_folders(folder.parent)
    # Another process may create the folder first. If it creates a file with this path, the caller's
    # writes fail.
    with contextlib.suppress(FileExistsError):
        folder.mkdir(_FOLDER_MODE)
        with _opened(folder, os.O_NOFOLLOW) as made:
            os.fchmod(made, _FOLDER_MODE)


def remove_litter(*paths: Path) -> None:
    """Remove the temporary files next to files, which killed writers have left.

    The caller must hold the writers' lock.

    Raises:
        FileError: a file can't be removed.
    """
    for folder in dict.fromkeys(path.parent for path in paths):
        prefixes = tuple(_temporary_prefix(path) for path in paths if path.parent == folder)
        for left in matching(folder, _temporary_prefix(Path("*")) + "*"):
            if left.name.startswith(prefixes):
                remove(left)


def _temporary_prefix(path: Path) -> str:
    return f".{path.name}.hostrouting-"


def remove(path: Path) -> bool:
    """Remove a file, or an empty folder in its place.

    Returns:
        Whether the path existed.

    Raises:
        FileError: the path exists but can't be removed.
    """
    with (
        translate_errors(f"remove {path}"),
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
    ):
        try:
            path.unlink()
        except IsADirectoryError:
            path.rmdir()
        _sync(path.parent)
        return True
    return False


def move(path: Path, to: Path) -> None:
    """Rename a file, replacing the target if it exists; do nothing if the file is missing.

    Raises:
        FileError: the file can't be moved.
    """
    with translate_errors(f"move {path}"), contextlib.suppress(FileNotFoundError):
        path.replace(to)


def remove_empty_folder(path: Path) -> None:
    """Remove a folder if it exists and is empty.

    Raises:
        FileError: the folder is empty but can't be removed.
    """
    fine = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR)
    with translate_errors(f"remove the folder {path}", *fine):
        path.lstat()  # rmdir(2) reports a read-only file system even for a missing folder
        path.rmdir()


def target(path: Path) -> str:
    """Return a symlink's target without normalizing it.

    Raises:
        FileError: the symlink can't be read.
    """
    with translate_errors(f"read the link {path}"):
        return os.readlink(path)  # noqa: PTH115 - Path would normalize it


def link(path: Path, to: str) -> None:
    """Create a symlink, along with any missing parent folders.

    Raises:
        FileError: the symlink can't be created.
    """
    with translate_errors(f"make the link {path}"):
        make_folders(path.parent)
        path.symlink_to(to)


@contextlib.contextmanager
def _opened(folder: Path, flags: int = 0, above: int | None = None) -> Iterator[int]:
    """Open a folder and yield its descriptor, which refers to the folder even once renamed."""
    flags |= os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(folder, flags, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened_without_links(folder: Path) -> Iterator[int]:
    """Open a folder as ``_opened`` does; fail if a step of its absolute path is a symlink."""
    with contextlib.ExitStack() as stack:
        above = stack.enter_context(_opened(Path("/")))
        for step in folder.parts[1:-1]:
            # O_PATH needs no permission to read the folder.
            above = stack.enter_context(_opened(Path(step), os.O_NOFOLLOW | os.O_PATH, above))
        yield stack.enter_context(_opened(Path(folder.name or "/"), os.O_NOFOLLOW, above))


def _sync(folder: Path) -> None:
    with _opened(folder) as descriptor:
        os.fsync(descriptor)
