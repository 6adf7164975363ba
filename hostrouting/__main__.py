"""``python -m hostrouting`` and the ``hostrouting`` command: ``cli.main`` in a process of its own."""

import gc
import os
from typing import NoReturn

# Modules are tens of thousands of objects that stay, and routes may be millions: looking for garbage among them takes
# as long as a whole check. Only what runs for long, watch and judge, enables it.
gc.disable()


def run() -> NoReturn:
    """Run the command that the process was started for, and end the process with its exit code.

    It ends at once, as by now all is written and closed: taking apart what was loaded and read would take another
    twentieth of a check.
    """
    try:
        from hostrouting.cli import main

        code = main()
    except KeyboardInterrupt:
        import signal

        # Outside a task, which ends in its own way: as what doesn't catch the signal, without showing where.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise
    os._exit(code)


if __name__ == "__main__":
    run()
