"""Run ``apply`` repeatedly, each time with a fault one step later, and inspect what it leaves behind.

``crashing.py FOLDER kill|refuse`` forks a child for each step. A step is a change of a file, a folder or a link below
the layout. An audit hook sees it just before it happens, and either kills the child (SIGKILL) or refuses the change
(ENOSPC). The program prints one line of JSON for each step, with the violations that it found.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import attrs
from nightly import by_day
from planning import install_for_boot, wanted_probe
from shadowed import shadowed_kernel

import phases
from hostrouting import Config, Configure, Host, HostRoutingError, Layout
from hostrouting.boot.render import render_static_routes
from hostrouting.testing import FakeSystemd

MACHINE = "systemd-nspawn@kube1.service"
KUBELET = "kubelet.service"
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink"}


def config(destination: str, mode: str, consumer: str, *, is_watched: bool = False) -> Config:
    return Config.from_mapping(
        {
            "hostRouting": {
                "staticRoutes": {"enabled": True, "routes": [{"destination": destination}]},
                "routeOverlap": {"expectedCidrs": [destination], "mode": mode},
                "consumer": consumer,
                "waitSeconds": 0,
                "watch": {"enabled": is_watched},
            }
        }
    )


NOTHING = Config()
# The script that removes routes replaces the script that adds them.
WITHOUT_ROUTES = render_static_routes(Config(wait_seconds=0))
OLD = config("172.16.1.0/24", "STRICT", "systemd-nspawn@.service")
NEW = config("172.16.2.0/24", "WARN", KUBELET, is_watched=True)


@attrs.frozen
class Probe:
    """A request for the load balancer's probe, or for its removal if there is no device."""

    device: str | None
    consumer: str = KUBELET


OLD_PROBE, NEW_PROBE, NO_PROBE = Probe("eth0", "systemd-nspawn@.service"), Probe("azure0"), Probe(None)


def host(layout: Layout) -> Host:
    return Host(routes=shadowed_kernel(), units=FakeSystemd(layout, running=[MACHINE]), layout=layout)


def apply(layout: Layout, wanted: Config | Probe) -> None:
    on = host(layout)
    if isinstance(wanted, Config):
        phases.run(Configure(wanted, host=on))
    else:
        install_for_boot(on, wanted_probe(wanted.device, wanted.consumer, layout))


def tree(layout: Layout) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(layout.root)): (
            (str(path.readlink()), 0) if path.is_symlink() else (path.read_text(), path.stat().st_mode)
        )
        for path in layout.root.joinpath("etc").rglob("*")
        if path.is_symlink() or path.is_file()
    }


def fault_at(step: int, layout: Layout, fault: str) -> None:
    left = step

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        is_change = event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT)
        if not is_change or not str(args[0]).startswith(str(layout.root / "etc")):
            return
        if event in ("os.mkdir", "os.rmdir"):
            # The file system would refuse these calls anyway, as the folder already exists or isn't empty.
            folder = Path(args[0])
            if folder.exists() and (event == "os.mkdir" or any(folder.iterdir())):
                return
        left -= 1
        if left == 0:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))

    sys.addaudithook(hook)


def violations(layout: Layout, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return violations of the invariants that every file is complete and every gate has its scripts."""
    now = {name: value for name, value in tree(layout).items() if ".hostrouting-" not in name}
    found = [
        f"{name} is neither old nor new"
        for name, value in now.items()
        if value not in (before.get(name), after.get(name))
        and value[0] != WITHOUT_ROUTES
        and not name.endswith((".conf", "installed.json", "gate.list"))
        and "/stages/" not in name
    ]
    manifest = "etc/hostrouting/installed.json"
    ours = {name for name in now if "aks-flex-node" in name or name.endswith("hostrouting.conf")}
    if ours and manifest not in now:
        found.append(f"{sorted(ours)} without a manifest")
    for name, (text, _) in now.items():
        if name.endswith(("zz-hostrouting.conf", "gate.list")):
            found += [
                f"{name} names {word}, which isn't there or can't run"
                for word in text.split()
                if word.endswith(".sh") and not now.get(word.rpartition("+")[2].lstrip("/"), ("", 0))[1] & 0o100
            ]
    return found


def references(folder: Path, story: str, first: list[Config | Probe], then: Config | Probe) -> list[dict[str, Any]]:
    """Return the files before and after the last step of a story."""
    before, after = Layout(folder / f"{story}-before"), Layout(folder / f"{story}-after")
    before.units.mkdir(parents=True)
    for wanted in first:
        apply(before, wanted)
    shutil.copytree(before.root, after.root, symlinks=True)
    apply(after, then)
    return [tree(before), tree(after)]


def child(layout: Layout, step: int, fault: str, wanted: Config | Probe) -> int:
    """Return 0 after success without a fault, 1 after a clear error, or 2 after anything else."""
    fault_at(step, layout, fault)
    try:
        apply(layout, wanted)
    except HostRoutingError:
        return 1
    except BaseException:  # noqa: BLE001 - this is what is looked for
        traceback.print_exc()
        return 2
    return 0


def main(folder: Path, fault: str) -> None:
    stories: dict[str, tuple[Config | Probe, ...]] = {
        "install": (NOTHING, OLD),
        "change": (OLD, NEW),
        "remove": (NEW, NOTHING),
        "install probe": (OLD, OLD_PROBE),
        "change probe": (OLD, OLD_PROBE, NEW_PROBE),
        "remove beside probe": (OLD_PROBE, OLD, NOTHING),
        "remove probe": (OLD, OLD_PROBE, NO_PROBE),
    }
    # In the daytime profile, every other story gets one fault, and the rest get the other.
    begin = by_day(("kill", "refuse").index(fault), by_night=0)
    for story, (*first, then) in [*stories.items()][begin :: by_day(2, by_night=1)]:
        before, after = references(folder, story, first, then)
        # In the daytime profile, only some of the steps are tried, and different ones for each fault.
        for step in range(1 + (fault == "kill"), 200, by_day(16, by_night=1)):
            layout = Layout(folder / f"{story}-{step}")
            shutil.copytree(folder / f"{story}-before", layout.root, symlinks=True)
            pid = os.fork()
            if pid == 0:
                os._exit(child(layout, step, fault, then))
            status = os.waitpid(pid, 0)[1]
            code = os.waitstatus_to_exitcode(status)
            found = violations(layout, before, after)
            if fault == "refuse" and code == 1 and "remove" not in story and not partly_done(layout, before):
                found += [] if tree(layout) == before else ["a refused run isn't put back"]
            if code == 2:
                found.append("an exception that is no HostRoutingError")
            if story in ("install", "remove"):
                found += folders_after_removal(layout, folder / f"{story}-{step}-removed")
            apply(layout, then)
            if tree(layout) != after:
                found.append("the next run doesn't heal it")
            step_report = {"story": story, "step": step, "code": code, "violations": found}
            sys.stdout.write(f"{json.dumps(step_report)}\n")
            sys.stdout.flush()
            if code == 0:
                break


def folders_after_removal(layout: Layout, copy: Path) -> list[str]:
    """Return the folders that a faulty run created and a removal leaves behind."""
    removed = Layout(shutil.copytree(layout.root, copy, symlinks=True))
    apply(removed, NOTHING)
    there = {path for path in removed.root.joinpath("etc").rglob("*") if path.is_dir()}
    left = there - {removed.units, *removed.units.parents}
    return [f"a removal leaves {removed.relative(path)}" for path in sorted(left)]


def partly_done(layout: Layout, before: dict[str, Any]) -> bool:
    """Return whether everything was still installed when a removal was refused, for a later run to finish."""
    script = "etc/aks-flex-node/static-routes.sh"
    return tree(layout).get(script) != before.get(script)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
