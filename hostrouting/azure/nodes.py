"""Run external programs on a node, and define the exceptions of the Azure tasks."""

from __future__ import annotations

import errno as errnos
import json
import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import attrs

from hostrouting.boot.host import Host
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.model.errors import ConfigError, HostRoutingError
from phases import CancelScope, TimedOut

T = TypeVar("T")


class LoadBalancerProbeError(HostRoutingError):
    """The error if probes can't be rewritten, or it isn't known whether the node has IPv6."""


class AzureVnetError(HostRoutingError):
    """The error if azure-vnet's leftovers can't be read or removed.

    For example, another process holds the lock, or has restored the leftovers.
    """


def node_or_default(host: Host, given: T | None, real: Callable[[], T]) -> T:
    """Return the node that a task was given, or else this host's node.

    Args:
        given: the task's argument; None for this host's node.
        real: a function that makes this host's node.

    Raises:
        ConfigError: the layout has another root, and no node was given.
    """
    if given is not None:
        return given
    if not host.layout.is_this_host:
        root = host.layout.root
        problem = f"must be given with a layout below {root}: a real one, or a fake"
        raise ConfigError([("node", problem)])
    return real()


# --- programs: nft(8), ip(8), bridge(8), ebtables(8) ----------------------------------------------

# These programs take milliseconds. On a busy system, or while another process holds a lock, they
# take longer.
_RUN_SECONDS = 30.0

_NOT_PERMITTED = ("permission denied", "operation not permitted", "you must be root")
# ebtables has two backends, nftables and legacy, each with its own rules.
LEGACY_BY_HAND = (
    "rules of ebtables-legacy aren't read; list them with `ebtables-legacy -t nat -L --Lmac2`, "
    "and delete those of gone pods one by one with `ebtables-legacy --concurrent -t nat -D ...`"
)
_EBTABLES = (
    "that has it (iptables on Debian and Ubuntu, iptables-nft on others); "
    f"even then, {LEGACY_BY_HAND}"
)
_PACKAGES = {"nft": "nftables", "ebtables-nft-save": _EBTABLES, "ebtables-nft-restore": _EBTABLES}


@attrs.define(kw_only=True, eq=False)
class Programs:
    """Base class for nodes that run programs with a fixed PATH and locale.

    Args:
        search_path: the search path for programs, in PATH format.
    """

    error: ClassVar[type[HostRoutingError]]
    """The error to raise if a program can't be run, or fails."""
    search_path: str = SEARCH_PATH

    def run(
        self,
        attempt: str,
        command: str,
        *fine: str,
        text: str | None = None,
    ) -> str:
        """Run a program to completion and return its output.

        Args:
            attempt: a verb phrase for error messages, such as ``look up a route``.
            command: the program and its arguments, separated by spaces.
            fine: strings that excuse a failure. A program whose stderr contains one has succeeded.
            text: the program's standard input, or None.
        """
        argv = command.split()
        program = argv[0]
        # With EBTABLES_SAVE_COUNTER=no, ebtables-save omits counters. ebtables can't delete a rule
        # that is given with counters.
        env = os.environ | {"LC_ALL": "C", "PATH": self.search_path, "EBTABLES_SAVE_COUNTER": "no"}
        # A cancellation of the task must not end a program in the middle of a change. So the
        # program has its own scope.
        scope = CancelScope(timeout=_RUN_SECONDS)
        try:
            done = scope.run(
                argv,
                input=text,
                env=env,
                check=False,
            )
        except TimedOut:
            raise self.error(
                f"can't {attempt}: {program} gave no answer within {_RUN_SECONDS:g} s"
            ) from None
        except OSError as error:
            raise self._not_run(attempt, program, error) from error
        if done.returncode == 0 or any(words in done.stderr for words in fine):
            return done.stdout
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        message = f"can't {attempt}: {program} refused: {said}"
        if any(words in said.lower() for words in _NOT_PERMITTED):
            raise self.error(message, hint="run as root", errno=errnos.EPERM)
        raise self.error(message)

    def _not_run(self, attempt: str, program: str, error: OSError) -> HostRoutingError:
        if error.errno == errnos.ENOENT:
            why = f"{program} isn't installed"
            hint = f"install the package {_PACKAGES.get(program, 'iproute2')}"
        else:
            why = f"can't run {program}: {os.strerror(error.errno or 0)}"
            hint = ""
        return self.error(f"can't {attempt}: {why}", hint=hint, errno=error.errno)

    def run_ip(self, attempt: str, command: str) -> list[dict[str, Any]]:
        """Return the parsed output of ip or bridge; empty if the interface doesn't exist."""
        printed = self.run(attempt, command, "Cannot find", "does not exist")
        return list(json.loads(printed or "[]"))
