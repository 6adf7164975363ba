"""``python -m hostrouting`` and the ``hostrouting`` command: ``cli.main`` in a process of its own."""

import gc
import sys

# Modules are tens of thousands of objects that stay, and routes may be millions: looking for garbage among them, here
# and once more at the exit, takes as long as a whole check. What works for long looks for it now and then.
if {"watch", "judge"} & {*sys.argv}:
    gc.set_threshold(50_000)
else:
    gc.disable()


def run() -> int:
    """Run the command that the process was started for.

    Returns:
        The exit code.
    """
    try:
        from hostrouting.cli import main

        return main()
    except KeyboardInterrupt:
        import signal

        # Outside a task, which ends in its own way: as what doesn't catch the signal, without showing where.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(run())
