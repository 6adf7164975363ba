"""What the two neighbours have in common: the node that they work on, the programs that they ask, and their errors."""

from __future__ import annotations

import errno as errnos
import json
import os
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any, TypeVar

import attrs

from hostrouting.boot.host import Host
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.model.errors import ConfigError, HostRoutingError
from phases import CancelScope, TimedOut

T = TypeVar("T")


class LoadBalancerProbeError(HostRoutingError):
    """Health probes of the load balancer can't be rewritten, or whether they have to be can't be told."""


class AzureVnetError(HostRoutingError):
    """What azure-vnet has left can't be read or removed, or it was held by others, or came back."""


def given_or_real(host: Host, given: T | None, real: Callable[[], T]) -> T:
    """A host's side that a task works on.

    Args:
        host: which.
        given: to the task; None: this kernel's.
        real: makes that.

    Raises:
        ConfigError: it wasn't given beside a layout of another root.
    """
    if given is not None:
        return given
    if not host.layout.is_this_host:
        raise ConfigError([("node", f"must be given beside a layout below {host.layout.root}: a real one, or a fake")])
    return real()


# --- programs: nft(8), ip(8), unshare(1), ebtables(8) ----------------------------------------------------------------

# They answer in milliseconds, wait for each other's locks, and are slow on a loaded machine.
_ANSWER_SECONDS = 30.0

_NOT_PERMITTED = ("permission denied", "operation not permitted", "you must be root")
_PACKAGES = {
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "ebtables-nft-save": "that has it (iptables on Debian and Ubuntu, iptables-nft on others)",
}
_NOT_FOUND = 127  # of a shell, POSIX 2.8.2


@attrs.frozen
class Programs:
    """Runs programs, whatever the path and the language of who runs this.

    Args:
        error: what is raised where one can't be run, or refuses.
        search_path: where they are looked for.
    """

    error: type[HostRoutingError]
    search_path: str = SEARCH_PATH

    def ask(self, attempt: str, *argv: str, text: str | None = None, fine: tuple[str, ...] = ()) -> str:
        """What a program says; ``run`` has the arguments. A refusal is an error, but for one in such words."""
        done = self.run(attempt, *argv, text=text)
        if done.returncode and not any(words in done.stderr for words in fine):
            raise self.refusal(attempt, done)
        return done.stdout

    def ask_ip(self, attempt: str, *argv: str) -> list[dict[str, Any]]:
        """What ip or bridge lists; nothing, of an interface that isn't there."""
        found: list[dict[str, Any]] = json.loads(self.ask(attempt, *argv, fine=("Cannot find",)) or "[]")
        return found

    def run(self, attempt: str, *argv: str, text: str | None = None) -> CompletedProcess[str]:
        """Run a program to its end.

        Args:
            attempt: what for, as a verb phrase.
            argv: the program, and its arguments.
            text: what it reads.
        """
        # With counters, a rule that ebtables saves is none that can be deleted.
        env = os.environ | {"LC_ALL": "C", "PATH": self.search_path, "EBTABLES_SAVE_COUNTER": "no"}
        # Own scope: it changes something or it doesn't, so a cancel waits for the answer.
        try:
            done = CancelScope(timeout=_ANSWER_SECONDS).run(argv, input=text, env=env, check=False)
        except TimedOut:
            raise self.error(f"can't {attempt}: {argv[0]} gave no answer within {_ANSWER_SECONDS:g} s") from None
        except OSError as error:
            if error.errno == errnos.ENOENT:
                raise self._missing(attempt, argv[0]) from error
            reason = os.strerror(error.errno or 0)
            raise self.error(f"can't {attempt}: can't run {argv[0]}: {reason}", errno=error.errno) from error
        if done.returncode == _NOT_FOUND:
            raise self._missing(attempt, "nft")
        return done

    def _missing(self, attempt: str, program: str) -> HostRoutingError:
        package = _PACKAGES.get(program, "that has it")
        return self.error(
            f"can't {attempt}: {program} isn't installed; install the package {package}", errno=errnos.ENOENT
        )

    def refusal(self, attempt: str, done: CompletedProcess[str]) -> HostRoutingError:
        """The error that a program's own words make."""
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        is_forbidden = any(words in said.lower() for words in _NOT_PERMITTED)
        return self.error(
            f"can't {attempt}: {done.args[0]} refused: {said}{'; run as root' if is_forbidden else ''}",
            errno=errnos.EPERM if is_forbidden else None,
        )
