"""A pipeline of one's own: our tasks among others, some side by side, watched as it runs.

python examples/custom_pipeline.py
"""

from __future__ import annotations

import sys

import attrs
from bootstrap_agent import try_host

import phases
from hostrouting import CheckRouteOverlap, Config, ConfigureStaticRoutes, Host
from phases import CancelScope, Parallel, Serial, Timeout


@attrs.frozen
class PullImage:
    """A task is anything with a name and do(scope)."""

    image: str
    name: str = "pull-image"

    def do(self, scope: CancelScope) -> str:
        """Pull it; the subprocess ends, with its children, when the scope is cancelled."""
        for layer in range(3):
            scope.progress(f"{self.image}: layer {layer + 1} of 3", layer / 3)
            scope.run(["sleep", "0.01"])
        return self.image


@phases.task("start-machine")
def start_machine(scope: CancelScope) -> str:
    """A function can be a task too."""
    scope.check()
    return "kube1"


class Printing:
    """An observer: told of every start, progress and end, one call at a time, even from parallel tasks."""

    def started(self, path: str) -> None:
        """A task starts."""
        print(f"{path}: started")

    def progress(self, path: str, message: str, fraction: float | None) -> None:
        """A task says how far it is."""
        print(f"{path}: {message}" + ("" if fraction is None else f" ({fraction:.0%})"))

    def finished(self, path: str, status: phases.Status, error: BaseException | None, seconds: float) -> None:
        """A task has ended."""
        print(f"{path}: {status} after {seconds:.1f} s" + (f": {error}" if error else ""))


def pipeline(config: Config, host: Host) -> phases.Task[object]:
    """Routes and image side by side, then the check, then the machine; never the machine without the check."""
    return Serial(
        Parallel(
            ConfigureStaticRoutes(config, host=host),
            Timeout(60, PullImage("node:1.31"), name="pull-within-a-minute"),
            name="prepare",
        ),
        CheckRouteOverlap(config, host=host),
        start_machine,
        name="bootstrap",
    )


def main() -> int:
    """Show the tree, then run it."""
    with try_host() as (config, host):
        tree = pipeline(config, host)
        print(tree)
        phases.run(tree, observer=Printing())
    return 0


if __name__ == "__main__":
    sys.exit(main())
