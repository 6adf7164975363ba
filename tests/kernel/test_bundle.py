"""Test that install.sh installs the same files as ``apply --root`` without Python, and that
remove.sh removes them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest
from file_trees import write_file, write_link
from go_package import ANY, TEMPLATE, write_go_package
from nightly import IS_NIGHTLY, by_day, some
from node import build_node, on_linux, run_ip, run_ip6, tool, until
from wanted import ROUTE, config

import phases
from hostrouting import Config, Configure, Host, Layout
from hostrouting.boot.bundle import bundle, rendered_files
from hostrouting.boot.files import write_if_changed
from hostrouting.kernel.namespace import NamespaceKernel
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import read_routes
from hostrouting.model.routes import Protocol, Table
from hostrouting.model.rules import rule_words
from hostrouting.routes.plan import read_policy

pytestmark = pytest.mark.kernel

# Bind-mount the tree's /etc and /run over the real ones for the scripts under test.
_ENTER = 'mount --bind "$0/etc" /etc && mount --bind "$0/run" /run && exec "$@"'
_CHROOT = """
mkdir -p "$0/usr" "$0/proc" "$0/tmp"
ln -sT usr/bin "$0/bin"
for each in lib lib64; do [ ! -e "/$each" ] || ln -sT "usr/$each" "$0/$each"; done
[ -z "$3" ] || { mkdir -p "$0/run/systemd/system" && mount -t proc proc "$0/proc"; }
mount --rbind /usr "$0/usr" && cp -a "$2" "$0/tmp/out" && ip link set lo up || exit 70
ip route add 10.0.0.0/8 dev lo proto 217 && ip route add fd00:1::/48 dev lo proto 217 || exit 70
chroot "$0" /tmp/out/"$1" && ip -N route show proto 217 && ip -6 -N route show proto 217
"""


BOTH = config(ROUTE)
CONFIGS = {
    "both": BOTH,
    "kept": config(rules=[{"to": "10.96.0.0/12", "priority": 5269}], keep=["ib*"]),
    "other": config({"destination": "172.16.9.0/24"}, cidrs=("172.16.9.0/24",), waitSeconds=3),
    "routes": config(ROUTE, cidrs=()),
    "kubelet": config(
        ROUTE,
        "fd00:1::/48",
        routeOverlap={"expectedCidrs": ["10.0.0.0/8", "fd00:1::/48"], "containerDevs": ["a*"]},
        consumer="kubelet.service",
        waitSeconds=7,
        watch={"enabled": True},
    ),
}


@pytest.fixture
def new_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that creates a root tree with only some of the directories that our files
    need.
    """
    if shutil.which("systemctl") is None:
        pytest.skip("no systemctl on this machine")

    def make(name: str) -> Path:
        root = tmp_path / name
        for folder in ("run", "etc/systemd/system", "etc/iproute2", "usr/lib/systemd/system"):
            (root / folder).mkdir(parents=True)
        (root / "usr/lib/systemd/system" / TEMPLATE).write_text("[Service]\n")
        return root

    return make


@pytest.fixture
def tree(new_tree: Callable[[str], Path]) -> Path:
    return new_tree("tree")


def render(asked: Config, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    for file in bundle(asked, Layout(folder)):
        write_if_changed(file.path, file.text, mode=file.mode)
    return folder


def start(root: Path, script: Path, *words: str) -> subprocess.Popen[str]:
    argv = ["unshare", "--mount", "--", "sh", "-c", _ENTER, str(root), *words, str(script)]
    # If a script is truncated inside [[ ]], bash's error message contains the byte 0xFF.
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        umask=0o077,
    )


def run(root: Path, script: Path, *words: str) -> tuple[int, str, str]:
    process = start(root, script, *words)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def contents(root: Path, *, times: bool = False) -> dict[str, tuple[Any, ...]]:
    """Return mode, owner, and content or target of each file and symlink below /etc."""

    def told(path: Path) -> tuple[Any, ...]:
        state = path.lstat()
        held = (
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        return oct(state.st_mode), state.st_uid, held, state.st_mtime_ns if times else None

    return {str(path.relative_to(root)): told(path) for path in (root / "etc").rglob("*")}


def apply(asked: Config, root: Path) -> None:
    phases.run(Configure(asked, host=Host.image(root)))


@pytest.mark.parametrize(
    "names",
    [("routes",), ("kubelet",), ("kept",), ("both", "other", "kept")],
    ids=" then ".join,
)
def test_it_installs_what_apply_installs(
    names: Sequence[str], new_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    there, applied = new_tree("there"), new_tree("applied")
    before, folder = contents(there), tmp_path / "out"
    for name in names:
        code, out, err = run(there, render(CONFIGS[name], folder) / "install.sh")
        assert (code, err) == (0, "")
        apply(CONFIGS[name], applied)
        assert contents(there) == contents(applied)
    told = {line.split()[1] for line in out.splitlines()}
    files = {
        Layout(there).relative(file.path) for file in rendered_files(CONFIGS[name], Layout(there))
    }
    # An update leaves the units as they are.
    assert (
        told >= files
        if len(names) == 1
        else "/etc/systemd/system/static-routes.service" in files - told
    )

    installed = contents(there, times=True)
    assert run(there, folder / "install.sh") == (0, "nothing to change\n", "")
    assert contents(there, times=True) == installed

    # Remove what a killed run has left, too, with the script of any config of the same parts.
    (there / "etc/hostrouting/.gate.sh.hostrouting-new").write_text("half")
    (there / "etc/hostrouting/stages/install").mkdir(parents=True)
    render(CONFIGS[names[0]], folder)
    assert run(there, folder / "remove.sh")[::2] == (0, "")
    assert contents(there) == before
    assert run(there, folder / "remove.sh") == (0, "nothing to change\n", "")


@pytest.mark.parametrize(("name", "script"), [("routes", "install.sh"), ("kubelet", "remove.sh")])
def test_other_parts_or_another_consumer_are_left_alone(
    tree: Path, tmp_path: Path, name: str, script: str
) -> None:
    assert run(tree, render(BOTH, tmp_path / "out") / "install.sh")[0] == 0
    before = contents(tree, times=True)
    code, _, err = run(tree, render(CONFIGS[name], tmp_path / "out") / script)
    assert (code, contents(tree, times=True)) == (1, before)
    assert "names other parts, or another consumer" in err


@pytest.mark.parametrize("number", some(range(len(rendered_files(BOTH, Layout("/x")))), one_of=3))
def test_a_failure_is_rolled_back(tree: Path, tmp_path: Path, number: int) -> None:
    """The target path is a directory, or in an update (odd numbers) a pipe."""
    if number % 2:
        apply(CONFIGS["other"], tree)
    obstacle = Layout(tree).of(
        Layout("/x").relative(rendered_files(BOTH, Layout("/x"))[number].path)
    )
    obstacle.unlink(missing_ok=True)
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    (os.mkfifo if number % 2 else os.mkdir)(obstacle)
    before = contents(tree)
    code, _, err = run(tree, render(BOTH, tmp_path / "out") / "install.sh")
    assert (code, obstacle.name in err) == (1, True), err
    assert contents(tree) == before, err


# By day, each signal arrives at one of the moments.
SIGNALS = [*product((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), ("`sha256sum ", "`mktemp "))]


@pytest.mark.parametrize(("sent", "moment"), SIGNALS if IS_NIGHTLY else SIGNALS[::3] + SIGNALS[4:5])
def test_a_signal_rolls_it_back(
    tree: Path, tmp_path: Path, sent: signal.Signals, moment: str
) -> None:
    """It arrives between two substitutions, and bash 5.2 would lose it if these were written as
    $(...).
    """
    apply(CONFIGS["other"], tree)
    folder, before = render(BOTH, tmp_path / "out"), contents(tree)
    os.mkfifo(tree / "run/wait")
    script = folder / "install.sh"
    # Or when the first script is replaced.
    waits = f"`[[ ${{2-/check-}} != */check-* ]] || cat /run/wait; {moment[1:]}"
    # Must not end the rollback.
    again = 'finish() {\n  [ -n "${AGAIN-}" ] || { AGAIN=yes && kill -HUP $$; }'
    text = script.read_text().replace("finish() {", again).replace("-p /tmp", f"-p {tmp_path}")
    script.write_text(text.replace(moment, waits, 1))
    process = start(tree, script)
    with (tree / "run/wait").open("w"):
        process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, contents(tree), [*tmp_path.glob("tmp.*")]) == (130, before, []), err


def test_a_failed_rollback_of_a_file_is_reported(tree: Path, tmp_path: Path) -> None:
    """/etc becomes read-only before the last drop-in is written."""
    script = render(BOTH, tmp_path / "out") / "install.sh"
    seals = '  [[ $3 != */zz-* ]] || mount -o remount,bind,ro /etc\n  sync "$new"\n'
    script.write_text(script.read_text().replace('  sync "$new"\n', seals))
    code, _, err = run(tree, script)
    assert (code, "not all files could be restored" in err, "as they were" in err) == (
        1,
        True,
        False,
    )


def killed(script: Path, number: int) -> Path:
    """Return a copy of a script that kills itself with SIGKILL before its Nth command."""
    trap = f"COUNT=0; trap '[ $((++COUNT)) -ne {number} ] || kill -9 $$' DEBUG; set -T; "
    copy = script.with_name("killed.sh")
    before, begin, after = script.read_text().partition('\nbegin "$@"\n')
    copy.write_text(f"{before}\n{trap}{begin}{after}")
    copy.chmod(0o755)
    return copy


@pytest.mark.parametrize("name", ["install.sh", "update", "remove.sh"])
def test_the_next_run_finishes_a_killed_one(
    new_tree: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """By day, the first run is killed at one of its commands."""
    out, wanted = render(BOTH, tmp_path / "out"), new_tree("wanted")
    empty = contents(wanted)
    apply(BOTH, wanted)
    for number in range(by_day(300, by_night=1), 1000, 11):
        there = new_tree(f"tree{number}")
        if name != "install.sh":
            apply(CONFIGS["other"], there)
        script = killed(out / name.replace("update", "install.sh"), number)
        code, _, err = run(there, script)
        copy = shutil.copytree(there, tmp_path / f"copy{number}", symlinks=True)
        assert (run(there, out / "install.sh")[0], contents(there)) == (0, contents(wanted)), number
        assert (run(copy, out / "remove.sh")[0], contents(copy)) == (0, empty), number
        if code == 0 and number > 1:
            assert IS_NIGHTLY
            return
        assert code == -signal.SIGKILL, err
        if not IS_NIGHTLY:
            return
    pytest.fail("it never ended")


def restoring(script: Path, first: str) -> Path:
    """Return a copy of install.sh that fails once all files are written, and runs this before it
    restores them.
    """
    text = script.read_text()
    for old, new in (
        (
            "\nfor unit in `units`; do\n  ! is_there",
            "\nfalse\nfor unit in `units`; do\n  ! is_there",
        ),
        ("\n  set +e\n", f"\n  set +e\n  {first}\n"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return write_file(script.with_name("restoring.sh"), text, 0o755)


def test_a_restoration_needs_no_space(tree: Path, tmp_path: Path) -> None:
    apply(CONFIGS["other"], tree)
    before = contents(tree)
    script = restoring(render(BOTH, tmp_path / "out") / "install.sh", "trap '' XFSZ; ulimit -f 0")
    code, _, err = run(tree, script)
    assert (code, contents(tree)) == (1, before), err


def test_a_restoration_that_is_killed_anywhere_leaves_no_mixture(
    new_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    out = render(BOTH, tmp_path / "out")
    kinds: list[bool] = []
    for number in range(1, 1000):
        there = new_tree(f"tree{number}")
        apply(CONFIGS["other"], there)
        scripts = [Layout(there).script(name) for name in ("static-routes", "check-route-overlap")]
        old = {path.name: path.read_bytes() for path in scripts}
        is_it = f"[ $((++COUNT)) -ne {number} ] || kill -9 $$"
        # By day, only before each file that is restored.
        each = (
            f"trap '{is_it}' DEBUG; set -T"
            if IS_NIGHTLY
            else f'mv() {{ {is_it}; command mv "$@"; }}'
        )
        code, _, err = run(there, restoring(out / "install.sh", f"COUNT=0; {each}"))
        steps = [line.split()[0] for line in Layout(there).gate_list.read_text().splitlines()[:-1]]
        are_old = {(there / step[1:]).read_bytes() == old[Path(step).name] for step in steps}
        assert (len(steps), len(are_old)) == (2, 1), (number, steps)
        kinds += are_old
        if number % by_day(4, by_night=1) == 0:
            assert run(there, out / "install.sh")[0] == 0
            assert not [*there.rglob(".*.hostrouting-new")]
            assert run(there, out / "remove.sh")[0] == 0
        if code == 1:
            assert kinds == sorted(kinds)
            assert {*kinds} == {False, True}
            return
        assert code == -signal.SIGKILL, err
    pytest.fail("it never ended")


def test_a_substitution_that_fails_loses_nothing(
    new_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    """Bash goes on after one for which it can't make a pipe."""
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    out, wanted, empty = tmp_path / "out", new_tree("wanted"), contents(new_tree("empty"))
    for name in ("other", "both"):
        assert run(wanted, render(CONFIGS[name], out) / "install.sh")[0] == 0
    for number in range(1, 1000, by_day(96, by_night=1)):
        there = new_tree(f"tree{number}")
        apply(CONFIGS["other"], there)
        trace = (
            "strace",
            "--quiet=all",
            "-o",
            tmp_path / "calls",
            "-e",
            "trace=pipe2",
            "-e",
            f"inject=pipe2:error=EMFILE:when={number}",
        )
        code, _, err = run(there, out / "install.sh", *map(str, trace))
        assert code != 0 or contents(there) == contents(wanted), (number, err)
        assert (run(there, out / "remove.sh")[0], contents(there)) == (0, empty), (number, err)
        if "INJECTED" not in (tmp_path / "calls").read_text():
            return


_FULL = """
cp -a /etc /run/etc && mount -t tmpfs -o size={}k,mode=755 none /etc || exit 70
cp -a /run/etc/. /etc && rm -r /run/etc || exit 70
"$0" && code=0 || code=$?
cp -a /etc /run/etc
exit "$code"
"""


def test_a_disk_that_fills_up_leaves_no_mixture(
    new_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    out, wanted, former = render(BOTH, tmp_path / "out"), new_tree("wanted"), new_tree("former")
    for root in (wanted, former):
        apply(CONFIGS["other"], root)
    assert run(wanted, out / "install.sh")[0] == 0
    used = sum(
        -(-path.stat().st_size // 4096) * 4
        for path in (former / "etc").rglob("*")
        if path.is_file()
    )
    for free in range(0, 1000, by_day(160, by_night=4)):
        there = new_tree(f"tree{free}")
        apply(CONFIGS["other"], there)
        code, _, err = run(there, out / "install.sh", "sh", "-c", _FULL.format(used + free))
        shutil.rmtree(there / "etc")
        (there / "run/etc").rename(there / "etc")
        assert contents(there) == contents(former if code else wanted), (free, err)
        if code == 0:
            assert free > 0
            return
        assert code != 70, err
    pytest.fail("it never fits")


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_damaged_files_are_refused(tree: Path, tmp_path: Path, cut: int) -> None:
    folder, before = render(BOTH, tmp_path / "out"), contents(tree)
    script = folder / "etc/aks-flex-node/static-routes.sh"
    script.write_text(script.read_text()[: -cut or None] + ("x" if cut == 0 else ""))
    code, out, err = run(tree, folder / "install.sh")
    assert (code, out, contents(tree)) == (1, "", before)
    assert "aren't the rendered ones" in err


def test_what_was_verified_is_what_is_installed(
    new_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    """Another user may own the folder, and change the files in between."""
    there, applied = new_tree("there"), new_tree("applied")
    script = render(BOTH, tmp_path / "out") / "install.sh"
    changes = (
        f"\necho changed >>{script.parent}/etc/aks-flex-node/static-routes.sh\nfill_in_manifest\n"
    )
    text = script.read_text()
    assert text.count("\nfill_in_manifest\n") == 1
    script.write_text(text.replace("\nfill_in_manifest\n", changes))
    assert run(there, script)[0] == 0
    apply(BOTH, applied)
    assert contents(there) == contents(applied)


# Signals are sent to all processes of the script.
SENT = """for sent in TERM INT HUP QUIT PIPE; do kill -$sent $$; sh -c "kill -$sent \\$\\$"; done"""


def test_a_signal_does_not_stop_a_removal_halfway(tree: Path, tmp_path: Path) -> None:
    before, script = contents(tree), render(BOTH, tmp_path / "out") / "remove.sh"
    assert run(tree, script.with_name("install.sh"))[0] == 0
    script.write_text(script.read_text().replace("\nleft=150\n", f"\n{SENT}\nleft=150\n"))
    code, _, err = run(tree, script)
    assert (code, contents(tree)) == (0, before), err


def test_a_removal_whose_output_is_lost_is_complete(tree: Path, tmp_path: Path) -> None:
    before, script = contents(tree), render(BOTH, tmp_path / "out") / "remove.sh"
    assert run(tree, script.with_name("install.sh"))[0] == 0
    assert run(tree, script, "sh", "-c", 'exec "$0" >/dev/full')[0] == 0
    assert contents(tree) == before


def test_a_signal_does_not_stop_a_restoration(tree: Path, tmp_path: Path) -> None:
    apply(CONFIGS["other"], tree)
    before = contents(tree)
    script = restoring(
        render(BOTH, tmp_path / "out") / "install.sh", SENT.replace("; done", " || exit 3; done")
    )
    code, _, err = run(tree, script)
    assert (code, contents(tree)) == (1, before), err


def test_truncated_scripts_do_nothing(tree: Path, tmp_path: Path) -> None:
    folder, before = render(BOTH, tmp_path / "out"), contents(tree)
    for name in ("install.sh", "remove.sh"):
        text = (folder / name).read_text()
        for cut in range(len("#!/bin/bash -p\n{"), len(text) - 3, by_day(3989, by_night=997)):
            (folder / "cut.sh").write_text(text[:cut])
            assert run(tree, folder / "cut.sh", "bash", "-p")[0] != 0
    assert contents(tree) == before


def test_the_go_packages_links_are_taken(new_tree: Callable[[str], Path], tmp_path: Path) -> None:
    """A failure restores them, and a run that succeeds leaves what ``apply`` leaves."""
    there, applied = new_tree("there"), new_tree("applied")
    for root in (there, applied):
        links = write_go_package(Layout(root), f"172.16.1.0/24|{ANY}|0")
        write_link(links[0].parent.parent / "other unit.service.wants" / links[0].name, "../x")
    obstacle = Layout(there).gate_script
    obstacle.mkdir(parents=True)
    before = contents(there)
    folder = render(BOTH, tmp_path / "out")
    assert run(there, folder / "install.sh")[0] == 1
    assert contents(there) == before
    obstacle.rmdir()
    obstacle.parent.rmdir()
    code, out, err = run(there, folder / "install.sh")
    assert (code, err) == (0, "")
    apply(BOTH, applied)
    assert contents(there) == contents(applied)
    assert [line for line in out.splitlines() if line.startswith("removed ")] == [
        f"removed /etc/systemd/system/{unit}/{name}.service"
        for unit, names in (
            (f"{TEMPLATE}.requires", ("static-routes", "check-route-overlap")),
            ("other unit.service.wants", ("static-routes",)),
        )
        for name in names
    ]


_SYSTEMCTL = """\
#!/bin/bash
[[ $1 != show || $* != *ExecConditionEx* ]] || {
  # A start of the node runs the installed script before install.sh sees that nothing would hold
  # the node.
  /etc/aks-flex-node/static-routes.sh gate >&2
  echo LoadState=loaded
}
exit 0
"""


@attrs.frozen
class Node:
    """A node on which the scripts under test find a running systemd.

    Its ``systemctl`` shows a gate that doesn't hold.
    """

    tree: Path
    kernel: NamespaceKernel
    systemctl: Path

    def run(self, script: Path) -> tuple[int, str, str]:
        # SIGKILL doesn't end PID 1, so the script isn't it.
        mounted = 'mount --bind "$0" "$(readlink -f "$(command -v systemctl)")" && "$@"; exit $?'
        enter = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
        return run(self.tree, script, *enter, "sh", "-c", mounted, str(self.systemctl))

    def routes(self) -> list[str]:
        """Return the routes of table main, and our rules and side tables."""
        found: list[object] = []
        for backend in (self.kernel, NetlinkBackend6()):
            ours = read_policy(backend)
            found += [*read_routes(backend, Table.MAIN), *ours.routes, *map(rule_words, ours.rules)]
        return sorted(map(str, found))


@pytest.fixture
def running(tree: Path, tmp_path: Path) -> Node:
    kernel = build_node(on_linux())
    run_ip6("address add fd00:a::4/64 dev eth0 nodad")
    (tree / "run/systemd/system").mkdir(parents=True)
    (tree / "etc/alternatives").mkdir()
    (tree / "etc/alternatives/awk").symlink_to(tool("readlink", "-f", "/usr/bin/mawk").strip())
    return Node(tree, kernel, write_file(tmp_path / "systemctl", _SYSTEMCTL, 0o755))


WITHOUT_CARRIER = (
    "link add eth2 type veth peer name peer",
    "link set eth2 up",
    "link set peer up",
    "address add 10.9.0.4/24 dev eth2",
    "route add 172.16.2.0/24 via 10.9.0.1 dev eth2",
    "link set peer down",
)


def write_go_routes(node: Node) -> None:
    """Write the Go package's script and its routes, one of them with ``linkdown``."""
    write_go_package(Layout(node.tree), *(f"172.16.{number}.0/24|{ANY}|0" for number in (1, 2)))
    run_ip("route add 172.16.1.0/24 via 10.1.0.1 dev eth0", *WITHOUT_CARRIER)
    # The kernel notices the loss later, and then sets the flag in IPv4 and in IPv6.
    until(lambda: all("linkdown" in route for route in node.routes() if "dev eth2" in route))


def test_a_failure_gives_back_what_a_start_has_taken_over(running: Node, tmp_path: Path) -> None:
    write_go_routes(running)
    before, files = running.routes(), contents(running.tree)
    code, _, err = running.run(
        render(config({"destination": "172.16.1.0/24"}), tmp_path / "out") / "install.sh"
    )
    assert (code, "the gate doesn't hold" in err) == (1, True), err
    assert (running.routes(), contents(running.tree)) == (before, files), err


IPV6_ROUTE = {"destination": "fd00:1::/48", "gateway": "fd00:a::1", "dev": "eth0"}


FORMER = {"destination": "172.16.1.0/24", "gateway": "10.1.0.9", "dev": "eth0"}
KEPT = config(
    {"destination": "172.16.1.0/24"},
    IPV6_ROUTE,
    rules=[{"to": "10.96.0.0/12", "priority": 5269}, {"to": "fd00:9::/64", "priority": 5269}],
    keep=["ib*"],
)
_RULE = "rule add pref 5269 to 10.98.0.0/16 lookup {} proto 217"
# What an earlier config has installed, if there was one.
FORMERS: dict[str, tuple[Config | None, list[str]]] = {
    "nothing": (None, []),
    "a route": (config(FORMER), ["route add 172.16.1.0/24 via 10.1.0.9 dev eth0 proto 217"]),
    "a rule and a kept interface": (
        config(rules=[{"to": "10.98.0.0/16", "priority": 5269}], keep=["ib0"]),
        [
            _RULE.format(255),
            _RULE.format(254),
            "rule add pref 2170 from 172.16.0.10 lookup 2170007 proto 217",
            "route add 172.16.0.0/16 dev ib0 table 2170007 proto 217 src 172.16.0.10",
        ],
    ),
}


@pytest.mark.parametrize("former", FORMERS)
def test_a_failure_takes_back_what_a_start_has_installed(
    running: Node, tmp_path: Path, former: str
) -> None:
    installed, steps = FORMERS[former]
    if installed is not None:
        apply(installed, running.tree)
        run_ip(*steps)
    before, files = running.routes(), contents(running.tree)
    code, _, err = running.run(render(KEPT, tmp_path / "out") / "install.sh")
    assert (code, "the gate doesn't hold" in err) == (1, True), err
    assert (running.routes(), contents(running.tree)) == (before, files), err


def test_a_removal_takes_rules_and_side_tables_back(running: Node, tmp_path: Path) -> None:
    folder, before = render(KEPT, tmp_path / "out"), running.routes()
    text = running.systemctl.read_text()
    running.systemctl.write_text(text.replace("LoadState=loaded", "LoadState=not-found"))
    assert running.run(folder / "install.sh")[0] == 0
    there = running.routes()
    assert "2170: from 172.16.0.10 lookup 2170000" in there
    assert len(there) == len(before) + 8
    code, out, err = running.run(folder / "remove.sh")
    assert (code, err) == (0, "")
    assert running.routes() == before
    assert "rule del pref 5269 from all to fd00:9::/64 lookup 254 proto 217" in out


def test_a_removal_takes_the_verified_uplink(tree: Path, tmp_path: Path) -> None:
    script = render(BOTH, tmp_path / "out") / "remove.sh"
    assert run(tree, script.with_name("install.sh"))[0] == 0
    record = tree / "etc/hostrouting/uplink"
    record.write_text("eth0 02:00:00:00:00:00\n")
    record.with_name(".uplink.hostrouting-1a2b3c4d").touch()  # of an apply that was killed
    code, said, _ = run(tree, script)
    assert (code, "removed /etc/hostrouting/uplink" in said.splitlines()) == (0, True)
    assert not record.parent.exists()


def test_a_removal_leaves_what_was_not_taken_over(running: Node, tmp_path: Path) -> None:
    """The installation was killed before it replaced the Go package's script."""
    write_go_routes(running)
    before, out = (
        running.routes(),
        render(config({"destination": "172.16.1.0/24"}), tmp_path / "out"),
    )
    script = (out / "install.sh").read_text()
    killed_at = '\nput 0644 "$HERE/manifest" "$MANIFEST"\n'
    for text in (killed_at + "kill -9 $$\n", "\nkill -9 $$" + killed_at):
        copy = write_file(out / "killed.sh", script.replace(killed_at, text), 0o755)
        assert running.run(copy)[0] == 128 + signal.SIGKILL
        assert (running.tree / "run/aks-flex-node/adopted").exists()
        assert running.run(out / "remove.sh")[0] == 0
        assert running.routes() == before
        assert Layout(running.tree).script("static-routes").exists()


def test_other_programs_files_of_these_names_stay(tree: Path, tmp_path: Path) -> None:
    """If none of our files are installed, the Go package's files aren't touched."""
    for name in ("aks-flex-node/static-routes.sh", "systemd/system/static-routes.service"):
        path = tree / "etc" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("# of another program\n")
    wants = tree / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "static-routes.service").symlink_to("../static-routes.service")
    before = contents(tree, times=True)
    assert run(tree, render(BOTH, tmp_path / "out") / "remove.sh") == (0, "nothing to change\n", "")
    assert contents(tree, times=True) == before


@pytest.mark.parametrize(("name", "words"), [("a b\n$(x)`x`ü", ["bash"]), ("-n", [])])
def test_its_folder_may_have_any_name(
    tree: Path, tmp_path: Path, name: str, words: list[str]
) -> None:
    script = render(BOTH, tmp_path / name) / "install.sh"
    # CDPATH makes ``cd`` print the new directory.
    here = ("env", f"CDPATH={tmp_path}", "sh", "-c", 'cd "$0" && exec "$@"', str(tmp_path), *words)
    code, _, err = run(tree, script.relative_to(tmp_path) if name[0] != "-" else script, *here)
    assert (code, err) == (0, "")


MOUNTED = "/proc, and a /run as of this machine"


@pytest.mark.parametrize(
    ("script", "given"), [("install.sh", ""), ("install.sh", MOUNTED), ("remove.sh", MOUNTED)]
)
def test_a_run_in_a_chroot_leaves_this_machines_kernel_alone(
    tree: Path, tmp_path: Path, script: str, given: str
) -> None:
    out = render(BOTH, tmp_path / "out")
    if script == "remove.sh":
        assert run(tree, out / "install.sh")[0] == 0
    enter = ["unshare", "--mount", "--net", "--pid", "--fork", "--", "sh", "-c", _CHROOT]
    argv = [*enter, str(tree), script, str(out), given]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == [
        "10.0.0.0/8",
        "fd00:1::/48",
    ]
    assert (tree / "etc/hostrouting").exists() == (script == "install.sh")
    said = "systemd is not running: set up from the first boot on\n"
    assert (said in done.stdout) == (script == "install.sh")


def test_our_routes_of_any_type_are_removed(
    kernel: NamespaceKernel, tree: Path, tmp_path: Path
) -> None:
    kernel.add_link("eth0")
    script = render(BOTH, tmp_path / "out") / "remove.sh"
    assert run(tree, script.with_name("install.sh"))[0] == 0
    # A routes script that waits ends once it's gone, and would otherwise install the routes again.
    text = script.read_text().replace(
        "said=$(", "said=$([ ! -e /etc/aks-flex-node/static-routes.sh ] && "
    )
    script.write_text(text.replace("\nif is_running;", "\nif true;"))
    (tree / "run/aks-flex-node").mkdir()
    (tree / "etc/alternatives").mkdir()
    (tree / "etc/alternatives/awk").symlink_to(os.path.realpath("/usr/bin/awk"))
    ours = (
        *("-4 route add 192.0.2.0/24 dev eth0", "-6 route add fd00:1::/48 dev eth0"),
        *("-4 route add blackhole 198.51.100.7", "-4 route add prohibit 203.0.113.0/24"),
        *("-6 route add blackhole fd00:2::/48", "-6 route add unreachable fd00::7"),
    )
    kept = (
        "-4 route add default dev eth0",
        "-6 route add default dev eth0",
        "-6 route add throw default metric 2000",
    )
    for words in (*ours, *kept):
        tool("ip", *words.split(), "proto", "217")
    code, said, complaint = run(tree, script)
    assert (code, said.count("route del "), complaint) == (0, len(ours), "")
    assert [path.name for path in (tree / "run/aks-flex-node").iterdir()] == ["lock"]
    routes = [*read_routes(kernel, Table.MAIN), *read_routes(NetlinkBackend6(), Table.MAIN)]
    assert [
        each.destination.prefixlen for each in routes if each.protocol == Protocol.HOSTROUTING
    ] == [0, 0, 0]


@pytest.mark.parametrize("script", ["install.sh", "remove.sh"])
@pytest.mark.parametrize("name", ["trial.json", "trial.confirmed.json"])
def test_nothing_is_changed_during_a_trial(
    kernel: NamespaceKernel, tree: Path, tmp_path: Path, script: str, name: str
) -> None:
    """If its confirmation was killed, the timer would install the tried config over what the script
    leaves.
    """
    (tree / "run/systemd/system").mkdir(parents=True)
    (tree / "run/aks-flex-node").mkdir()
    (tree / "run/aks-flex-node" / name).touch()
    before = contents(tree)
    may_look_at_pid_1 = ("unshare", "--pid", "--fork", "--mount-proc")
    code, out, err = run(tree, render(BOTH, tmp_path / "out") / script, *may_look_at_pid_1)
    assert (code, out, contents(tree)) == (1, "", before)
    assert "a trial of routes is in progress" in err


# --- the Debian package, in a container or in an image under construction -------------------------

PRERM = Path(__file__).parents[2] / "deploy/debian/prerm"
LINK = "/etc/systemd/system/multi-user.target.wants/hostrouting-watch.service"
IMAGE = f"""
mount -t tmpfs none /etc
mount -t tmpfs none /run
mkdir -p /etc/hostrouting {Path(LINK).parent}
echo '{{}}' >/etc/hostrouting/installed.json
touch /etc/systemd/system/hostrouting-watch.service
ln -s ../hostrouting-watch.service {LINK}
"""


def test_the_debian_package_is_removed_without_systemd(tmp_path: Path) -> None:
    script = PRERM.read_text().replace("/usr/lib/hostrouting", str(tmp_path))
    words = f'{IMAGE}\nsh -c "$1" prerm remove\n[ ! -L {LINK} ]'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-euc", words, "sh", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "apt purge hostrouting" in done.stderr
