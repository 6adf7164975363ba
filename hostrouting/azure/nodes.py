"""The access of the Azure tasks to a node through programs, and the errors of these tasks."""

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
    """An error because the health probes can't be rewritten, or because it is unknown whether they must be."""


class AzureVnetError(HostRoutingError):
    """An error about the leftovers of azure-vnet.

    They can't be read or removed, or another process locks them or has restored them.
    """


def given_or_real(host: Host, given: T | None, real: Callable[[], T]) -> T:
    """Return the node that a task uses, which is the given one or the real one.

    Args:
        host: the host to work on.
        given: the task's argument, or None for the node of this kernel.
        real: a function that returns the node of this kernel.

    Raises:
        ConfigError: the layout has another root, and no node was given.
    """
    if given is None and not host.layout.is_this_host:
        raise ConfigError([("node", f"must be given with a layout below {host.layout.root}: a real one, or a fake")])
    return real() if given is None else given


# --- programs: nft(8), ip(8), bridge(8), ebtables(8) -----------------------------------------------------------------

# These programs answer in milliseconds, but they wait for each other's locks and are slow on a loaded machine.
_ANSWER_SECONDS = 30.0

_NOT_PERMITTED = ("permission denied", "operation not permitted", "you must be root")
# ebtables has two variants with separate rules.
LEGACY_BY_HAND = (
    "rules of ebtables-legacy aren't read; list them with `ebtables-legacy -t nat -L --Lmac2`, and delete those of "
    "gone pods one by one with `ebtables-legacy --concurrent -t nat -D ...`"
)
_EBTABLES = f"that has it (iptables on Debian and Ubuntu, iptables-nft on others); even then, {LEGACY_BY_HAND}"
_PACKAGES = {"nft": "nftables", "ebtables-nft-save": _EBTABLES, "ebtables-nft-restore": _EBTABLES}


@attrs.define(kw_only=True, eq=False)
class Programs:
    """A node that is queried by running programs, independently of the caller's PATH and language.

    Args:
        search_path: the folders of the programs, as in PATH.
    """

    error: ClassVar[type[HostRoutingError]]
    """Raised if a program can't be run, or refuses."""
    search_path: str = SEARCH_PATH

    def ask(self, attempt: str, command: str, *fine: str, text: str | None = None) -> str:
        """Run a program until it ends, and return its output.

        Args:
            attempt: the purpose, as a verb phrase for messages.
            command: the program and its arguments, separated by blanks.
            fine: texts in the program's output by which a refusal isn't an error.
            text: the program's standard input, if any.
        """
        argv = command.split()
        # Without this variable, rules are saved with counters, and ebtables can't delete such rules.
        env = os.environ | {"LC_ALL": "C", "PATH": self.search_path, "EBTABLES_SAVE_COUNTER": "no"}
        # The program gets its own scope and always runs to its end, because it may be changing something.
        try:
            done = CancelScope(timeout=_ANSWER_SECONDS).run(argv, input=text, env=env, check=False)
        except TimedOut:
            raise self.error(f"can't {attempt}: {argv[0]} gave no answer within {_ANSWER_SECONDS:g} s") from None
        except OSError as error:
            why, hint = f"can't run {argv[0]}: {os.strerror(error.errno or 0)}", ""
            if error.errno == errnos.ENOENT:
                why, hint = f"{argv[0]} isn't installed", f"install the package {_PACKAGES.get(argv[0], 'iproute2')}"
            raise self.error(f"can't {attempt}: {why}", hint=hint, errno=error.errno) from error
        if done.returncode and not any(words in done.stderr for words in fine):
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            is_forbidden = any(words in said.lower() for words in _NOT_PERMITTED)
            hint, number = ("run as root", errnos.EPERM) if is_forbidden else ("", None)
            raise self.error(f"can't {attempt}: {argv[0]} refused: {said}", hint=hint, errno=number)
        return done.stdout

    def ask_ip(self, attempt: str, command: str) -> list[dict[str, Any]]:
        """Return the output of ip or bridge, or an empty list if the interface doesn't exist."""
        return list(json.loads(self.ask(attempt, command, "Cannot find", "does not exist") or "[]"))
