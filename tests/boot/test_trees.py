"""Test the cache of trees, which builds each tree once, and removes a folder only if it is proven to be ours."""

from __future__ import annotations

import subprocess
import sys
import threading
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


def refuses(folder: Path, cache: Path, *, why: str) -> None:
    with pytest.raises(NotOursError, match=why):
        remove_build(folder, cache)
    assert (folder / "tree" / "etc" / "precious").read_text() == "precious"


def test_an_unfinished_tree_with_its_mark_is_removed(cache: Path) -> None:
    folder = leave_behind(cache)
    (folder / "tree" / "etc" / "link").symlink_to(cache)
    neighbour = cache / "neighbour"
    neighbour.touch()
    remove_build(folder, cache)
    assert list(cache.iterdir()) == [neighbour]


@pytest.mark.parametrize("mark", [None, "", f"{TOKEN[::-1]}\n", TOKEN], ids=["none", "empty", "another", "cut"])
def test_a_folder_without_its_mark_is_never_removed(cache: Path, mark: str | None) -> None:
    refuses(leave_behind(cache, mark=mark), cache, why="doesn't hold its mark")


def test_a_link_as_the_mark_does_not_count(cache: Path) -> None:
    folder = leave_behind(cache, mark=None)
    (cache / "elsewhere").write_text(f"{TOKEN}\n")
    (folder / "mark").symlink_to(cache / "elsewhere")
    refuses(folder, cache, why="doesn't hold its mark")


@pytest.mark.parametrize("name", ["bookworm-0123456789ab", "build-", "build-xyz", "etc", f"build-{TOKEN}0"])
def test_a_folder_of_another_name_is_never_removed(cache: Path, name: str) -> None:
    refuses(leave_behind(cache, name=name), cache, why="its name isn't that of an unfinished tree")


def test_a_folder_elsewhere_is_never_removed(cache: Path) -> None:
    (cache / "other").mkdir()
    refuses(leave_behind(cache / "other"), cache, why="isn't directly in the folder of trees")


def test_a_link_to_a_marked_folder_is_never_followed(cache: Path) -> None:
    (cache / "other").mkdir()
    folder = leave_behind(cache / "other")
    (cache / folder.name).symlink_to(folder)
    refuses(cache / folder.name, cache, why="isn't a folder of ours")


def test_a_path_through_a_link_is_refused(cache: Path) -> None:
    (cache / "real").mkdir()
    (cache / "link").symlink_to(cache / "real")
    leave_behind(cache / "real")
    refuses(cache / "link" / f"build-{TOKEN}", cache / "link", why="there are links on the way")


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


@pytest.mark.parametrize("suite", list(SUITES))
def test_concurrent_builders_make_one_tree(cache: Path, suite: str) -> None:
    made: list[Path] = []
    found: list[Path] = []
    both_are_there = threading.Barrier(2)

    def make(_suite: str, target: Path, _lock: int) -> None:
        made.append(target)
        target.mkdir()

    def find() -> None:
        both_are_there.wait()
        found.append(find_or_build(suite, cache=cache, make=make))

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


def test_a_foreign_folder_in_the_cache_stops_the_builder(cache: Path) -> None:
    folder = leave_behind(cache, mark=None)
    with pytest.raises(NotOursError):
        find_or_build("bookworm", cache=cache, make=lambda *_: None)
    assert folder.exists()


@pytest.mark.each_release
def test_its_python_is_compiled_in_it(tree: Path) -> None:
    """A machine's own Python adds no file later, and the tree contains no path of this checkout."""
    assert [*(tree / "usr/share/python3/debpython/__pycache__").glob("files.*.pyc")]
    assert not (tree / Path(__file__).parents[2].relative_to("/")).exists()


@pytest.mark.each_release
def test_it_boots_the_systemd_of_the_release(suite: str, machine: Machine) -> None:
    machine.boot()
    assert machine.systemd_version == SUITES[suite]
    assert machine.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert machine.systemctl("is-system-running", "--wait").stdout == "running\n"
    assert machine.systemctl("list-jobs").stdout == "No jobs running.\n"
