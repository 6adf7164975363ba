"""``python -m hostrouting`` and the ``hostrouting`` command: ``cli.main`` in a process of its own."""

import gc
import sys

# Modules are tens of thousands of objects that stay, and routes may be millions: looking for garbage among them, here
# and once more at the exit, takes as long as a whole check. Only watch, which doesn't end by itself, enables it.
gc.disable()


def run() -> int:
    """Run the command that the process was started for.

    Returns:
        The exit code.
    """
    from hostrouting.cli import main

    try:
        return main()
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(run())
