"""The node that the Azure tasks work on, the programs that they run, and their errors."""

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
    """Health probes of the load balancer can't be rewritten, or it can't be told whether they have to be."""


class AzureVnetError(HostRoutingError):
    """The leftovers of azure-vnet can't be read or removed, or another process holds them or brought them back."""


def given_or_real(host: Host, given: T | None, real: Callable[[], T]) -> T:
    """Return the side of a host that a task works on.

    Args:
        host: which.
        given: to the task; None: this kernel's.
        real: makes that.

    Raises:
        ConfigError: it wasn't given beside a layout of another root.
    """
    if given is None and not host.layout.is_this_host:
        raise ConfigError([("node", f"must be given beside a layout below {host.layout.root}: a real one, or a fake")])
    return real() if given is None else given


# --- programs: nft(8), ip(8), bridge(8), ebtables(8) -----------------------------------------------------------------

# They answer in milliseconds, wait for each other's locks, and are slow on a loaded machine.
_ANSWER_SECONDS = 30.0

_NOT_PERMITTED = ("permission denied", "operation not permitted", "you must be root")
# ebtables has two variants, each with rules of its own.
LEGACY_BY_HAND = (
    "rules of ebtables-legacy aren't seen; list them with `ebtables-legacy -t nat -L --Lmac2`, and delete those of "
    "gone pods one by one with `ebtables-legacy --concurrent -t nat -D ...`"
)
_EBTABLES = f"that has it (iptables on Debian and Ubuntu, iptables-nft on others); with it too, {LEGACY_BY_HAND}"
_PACKAGES = {"nft": "nftables", "ebtables-nft-save": _EBTABLES, "ebtables-nft-restore": _EBTABLES}


@attrs.define(kw_only=True, eq=False)
class Programs:
    """A node that is asked by programs, whatever the path and the language of the caller.

    Args:
        search_path: where they are looked for.
    """

    error: ClassVar[type[HostRoutingError]]
    """Raised where one can't be run, or refuses."""
    search_path: str = SEARCH_PATH

    def ask(self, attempt: str, command: str, *fine: str, text: str | None = None) -> str:
        """Run a program to its end, and return what it prints.

        Args:
            attempt: what for, as a verb phrase.
            command: the program, and its arguments, separated by blanks.
            fine: words of a refusal that isn't an error.
            text: what it reads.
        """
        argv = command.split()
        # With counters, a rule that ebtables saves is none that can be deleted.
        env = os.environ | {"LC_ALL": "C", "PATH": self.search_path, "EBTABLES_SAVE_COUNTER": "no"}
        # Own scope: it changes something or it doesn't, so a cancel waits for the answer.
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
        """Return what ip or bridge lists; nothing, of an interface that isn't there."""
        return list(json.loads(self.ask(attempt, command, "Cannot find", "does not exist") or "[]"))
