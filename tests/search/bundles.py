"""Updates by the scripts of a bundle, and a systemctl(1) for them that shows the fake systemd's
state.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from wanted import MACHINE

from hostrouting import Config, Layout
from hostrouting.boot.bundle import bundle
from hostrouting.boot.files import write_if_changed
from hostrouting.model.errors import UnitError
from phases import CancelScope, Task, task

_FOLDER = Path("/run/search/bundle")


def run_script(config: Config, name: str) -> Task[object]:
    """Return a task that renders a config and runs one of its scripts."""

    def run(_: CancelScope) -> None:
        shutil.rmtree(_FOLDER, ignore_errors=True)
        for file in bundle(config, Layout(_FOLDER)):
            write_if_changed(file.path, file.text, mode=file.mode)
        Path("/run/systemd/system").mkdir(parents=True, exist_ok=True)
        script = _FOLDER / name
        # A killed run leaves its files.
        script.write_text(script.read_text().replace("-p /tmp", "-p /run"))
        signal.signal(signal.SIGQUIT, lambda *_: None)  # it is meant for the script
        done = subprocess.run([script], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnitError(f"{name}: {done.stdout}{done.stderr}")

    return task("run-script")(run)


def main(verb: str, *words: str) -> None:
    """Reload the fake systemd, or show a unit's properties as systemctl(1) does."""
    from search.programs import LoadedSystemd

    units = LoadedSystemd()
    if verb == "daemon-reload":
        units.reload()
        return
    (names,) = (
        word.partition("=")[2].split(",") for word in words if word.startswith("--property=")
    )
    # install.sh also asks for an instance that was never started.
    shown = units.show(MACHINE if "@" in words[-1] else words[-1], *names)
    lines = (value if "--value" in words else f"{key}={value}" for key, value in shown.items())
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
