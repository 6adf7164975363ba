"""``python -m hostrouting`` and the ``hostrouting`` command: ``cli.main`` in its own process."""

import gc
import sys

# Modules are tens of thousands of permanent objects, and routes may be millions: searching them for garbage, here and
# again at exit, takes as long as a whole check. Long-running commands do it now and then.
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

        # An interrupt outside a task: end like a program without a handler, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(run())
