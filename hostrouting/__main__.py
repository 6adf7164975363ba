"""``python -m hostrouting`` and the ``hostrouting`` command: ``cli.main`` in a process of its own."""

import gc
import sys

# Modules are tens of thousands of objects that stay: looking for garbage among them, as they are loaded and once more
# at the exit, takes as long as a whole check.
_LOADED_OBJECTS_MAX = 200_000
gc.set_threshold(_LOADED_OBJECTS_MAX)


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
