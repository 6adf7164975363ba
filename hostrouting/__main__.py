"""Entry point for ``python -m hostrouting`` and the ``hostrouting`` command."""

import gc
import sys

from hostrouting._lazy import require_phases

# The modules create tens of thousands of long-lived objects, and there may be millions of routes.
# Garbage collection, both during the run and at exit, would take as long as an entire check.
# Long-running commands collect garbage, but seldom.
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
        import signal

        # During imports, which take most of a short run, let SIGINT kill the process without a
        # traceback. The ``except`` below does the same with a KeyboardInterrupt outside of a task.
        is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_handled:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        require_phases()
        from hostrouting.cli import main

        if is_handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    finally:
        gc.freeze()  # exclude all objects from the collection at exit


if __name__ == "__main__":
    sys.exit(run())
