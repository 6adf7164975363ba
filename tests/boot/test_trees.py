"""Test the cache of trees, which builds each tree once and removes a directory only if it is provably ours."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boot import keeper
from boot.trees import SUITES, CannotBuildError, NotOursError, find_or_build, remove_build

if TYPE_CHECKING:
    from boot.rig import Machine

TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def leave_behind(cache: Path, *, name: str = f"build-{TOKEN}", mark: str | None = f"{TOKEN}\n") -> Path:
    folder = cache / name
    (folder / "tree" / "etc").mkdir(parents=True)
    (folder / "tree" / "etc" / "precious").write_text("precious")
    if mark is not None:
        (folder / "mark").write_text(mark)
    return folder


def test_an_unfinished_tree_with_its_mark_is_removed(cache: Path) -> None:
    folder = leave_behind(cache)
    (folder / "tree" / "etc" / "link").symlink_to(cache)
    beside = cache / "beside"
    beside.touch()
    remove_build(folder, cache)
    assert list(cache.iterdir()) == [beside]


def linked_mark(cache: Path) -> tuple[Path, Path]:
    folder = leave_behind(cache, mark=None)
    (cache / "elsewhere").write_text(f"{TOKEN}\n")
    (folder / "mark").symlink_to(cache / "elsewhere")
    return folder, cache


def linked_folder(cache: Path) -> tuple[Path, Path]:
    folder = leave_behind(cache / "other")
    (cache / folder.name).symlink_to(folder)
    return cache / folder.name, cache


def behind_a_link(cache: Path) -> tuple[Path, Path]:
    folder = leave_behind(cache / "real")
    (cache / "link").symlink_to(cache / "real")
    return cache / "link" / folder.name, cache / "link"


REFUSED: dict[str, tuple[Callable[[Path], tuple[Path, Path]], str]] = {
    "no mark": (lambda cache: (leave_behind(cache, mark=None), cache), "doesn't hold its mark"),
    "another mark": (lambda cache: (leave_behind(cache, mark=f"{TOKEN[::-1]}\n"), cache), "doesn't hold its mark"),
    "a cut mark": (lambda cache: (leave_behind(cache, mark=TOKEN), cache), "doesn't hold its mark"),
    "a link as the mark": (linked_mark, "doesn't hold its mark"),
    "a finished tree": (lambda cache: (leave_behind(cache, name="bookworm-0123456789ab"), cache), "isn't that of an"),
    "a longer name": (lambda cache: (leave_behind(cache, name=f"build-{TOKEN}0"), cache), "isn't that of an"),
    "another folder": (lambda cache: (leave_behind(cache / "other"), cache), "isn't directly in the folder of trees"),
    "a link to a build": (linked_folder, "isn't a folder of ours"),
    "a cache behind a link": (behind_a_link, "there are links on the way"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_folder_is_never_removed(cache: Path, case: str) -> None:
    plant, why = REFUSED[case]
    folder, trees = plant(cache)
    with pytest.raises(NotOursError, match=why):
        remove_build(folder, trees)
    assert (folder / "tree" / "etc" / "precious").read_text() == "precious"


def test_nothing_is_removed_while_a_mount_is_below(cache: Path) -> None:
    if obstacle := keeper.obstacle():
        pytest.skip(obstacle)
    folder = leave_behind(cache)
    (folder / "tree" / "a b").mkdir()
    attempt = "import sys; from pathlib import Path; from boot.trees import *; remove_build(*map(Path, sys.argv[1:]))"
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-euc"),
            'mount --bind "$1/tree/etc" "$1/tree/a b" && exec "$3" -c "$4" "$1" "$2"',
            *("sh", folder, cache, sys.executable, attempt),
        ],
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "NotOursError" in done.stderr
    assert "something is mounted there" in done.stderr
    assert (folder / "tree" / "etc" / "precious").exists()


def test_concurrent_builders_make_one_tree(cache: Path) -> None:
    made: list[Path] = []
    found: list[Path] = []
    both_are_there = threading.Barrier(2)

    def make(_suite: str, target: Path, _lock: int) -> None:
        made.append(target)
        target.mkdir()

    def find() -> None:
        both_are_there.wait()
        found.append(find_or_build("bookworm", cache=cache, make=make))

    threads = [threading.Thread(target=find) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found[0] == found[1]
    assert found[0].is_dir()
    assert sorted(path.name for path in cache.iterdir()) == sorted(["lock", found[0].parent.name])


def test_failed_and_killed_attempts_leave_nothing(cache: Path) -> None:
    leave_behind(cache)

    def fail(_suite: str, target: Path, _lock: int) -> None:
        (target / "half").mkdir(parents=True)
        raise CannotBuildError("no network")

    with pytest.raises(CannotBuildError, match="no network"):
        find_or_build("bookworm", cache=cache, make=fail)
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.each_release
def test_its_python_is_compiled_in_it(tree: Path) -> None:
    """The machine's Python adds no files later, and the tree contains no paths from this checkout."""
    assert [*(tree / "usr/share/python3/debpython/__pycache__").glob("files.*.pyc")]
    assert not (tree / Path(__file__).parents[2].relative_to("/")).exists()


@pytest.mark.each_release
def test_it_boots_the_systemd_of_the_release(suite: str, machine: Machine) -> None:
    machine.boot()
    assert machine.systemd_version == SUITES[suite]
    assert machine.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert machine.systemctl("is-system-running", "--wait").stdout == "running\n"
    assert machine.systemctl("list-jobs").stdout == "No jobs running.\n"
