"""Run programs in the calling thread's network namespace, which must be one that the tests created."""

from __future__ import annotations

import os
import subprocess

from hostrouting.kernel._namespaces import this_namespace


def tool(*argv: str, stdin: str = "", pass_fds: tuple[int, ...] = ()) -> str:
    """Run a program and return its output."""
    done = attempt(*argv, stdin=stdin, pass_fds=pass_fds)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}\n{stdin}"
    return done.stdout


def attempt(*argv: str, stdin: str = "", pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program and ignore its exit status."""
    refuse_host()
    return subprocess.run(argv, input=stdin, text=True, capture_output=True, check=False, timeout=30, pass_fds=pass_fds)


def refuse_host() -> None:
    """Raise an error in the host's own network namespace."""
    assert repr(this_namespace()) != os.environ["HOSTROUTING_TEST_HOST_NAMESPACE"]
