"""Programs in the network namespace of the calling thread, which has to be one of the tests' own."""

from __future__ import annotations

import os
import subprocess

from hostrouting.kernel._namespaces import this_namespace


def tool(*argv: str, stdin: str = "", pass_fds: tuple[int, ...] = ()) -> str:
    """Run a program, and return its output."""
    done = attempt(*argv, stdin=stdin, pass_fds=pass_fds)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}\n{stdin}"
    return done.stdout


def attempt(*argv: str, stdin: str = "", pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program, and accept any exit status."""
    refuse_host()
    return subprocess.run(argv, input=stdin, text=True, capture_output=True, check=False, timeout=30, pass_fds=pass_fds)


def refuse_host() -> None:
    """Refuse to run in the host's own namespace."""
    assert repr(this_namespace()) != os.environ["HOSTROUTING_TEST_HOST_NAMESPACE"]
