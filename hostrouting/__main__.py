"""Entry point for ``python -m hostrouting`` and the ``hostrouting`` command."""

import gc
import sys

# The modules create tens of thousands of long-lived objects, and there may be millions of routes. Garbage collection,
# both during the run and at exit, would take as long as an entire check. Long-running commands only run it
# occasionally.
if {"watch", "judge"} & {*sys.argv}:
    gc.set_threshold(50_000)
else:
    gc.disable()


def run() -> int:
    """Run the command given in ``sys.argv``.

    Returns:
        The exit code.
    """
    try:
        from hostrouting.cli import main

        return main()
    except KeyboardInterrupt:
        import signal

        # Outside of a task, let SIGINT kill the process as if there were no handler, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(run())
