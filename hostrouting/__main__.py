"""``python -m hostrouting`` and the ``hostrouting`` command, which run ``cli.main`` in this process."""

import gc
import sys

# The modules consist of tens of thousands of permanent objects, and there may be millions of routes. To search them for
# garbage, now and again at exit, takes as long as a whole check. Long-running commands only do it from time to time.
if {"watch", "judge"} & {*sys.argv}:
    gc.set_threshold(50_000)
else:
    gc.disable()


def run() -> int:
    """Run the command for which the process was started.

    Returns:
        The exit code.
    """
    try:
        from hostrouting.cli import main

        return main()
    except KeyboardInterrupt:
        import signal

        # Outside of a task, an interrupt ends the process as if it had no handler, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(run())
