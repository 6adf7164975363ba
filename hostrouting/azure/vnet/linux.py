"""The node itself: ebtables(8), and the kernel's neighbours and routes over netlink.

ebtables comes in two variants, each with rules of its own: one keeps them in nftables, the other, the legacy one, in
tables of old that the kernel can only replace as a whole. Only the first can delete some rules in one transaction, and
only its rules are read and deleted here. It is found by its own name, or by what ``ebtables --version`` says.
"""

from __future__ import annotations

import errno as errnos
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hostrouting.azure.errors import AzureVnetError
from hostrouting.azure.vnet.model import NodeState
from hostrouting.azure.vnet.neighbourhood import Neighbourhood
from hostrouting.azure.vnet.parse import parse_rules
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.model.errors import RouteError
from phases import CancelScope, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from subprocess import CompletedProcess

    from hostrouting.azure.vnet.model import HostRoute, Neighbour

__all__ = ["LinuxBridgeNode"]

# Thousands of rules take a tenth of a second.
ANSWER_SECONDS = 30.0

_PACKAGE = "install the package that has ebtables-nft-save (iptables on Debian and Ubuntu, iptables-nft on others)"
_NOT_PERMITTED = ("permission denied", "operation not permitted", "you must be root")

_LEGACY_TABLE = "module/ebtable_nat"


class LinuxBridgeNode:
    """A ``BridgeNode``: the network namespace that the calling thread is in.

    Args:
        sys: where sysfs is, which tells what the kernel has loaded.
    """

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys
        self._around = Neighbourhood()

    def look(self, bridge: str) -> NodeState:
        """All that a plan is made of, but for files."""
        around = self._around
        with _as_azure_vnet_error():
            rules, notes = self._rules(bridge)
            neighbours = around.neighbours(bridge)
            routes, gateways = around.host_routes()
            addresses = around.host_addresses()
            # Last, as the port says.
            interfaces = around.interfaces()
        if not any(interface.name == bridge for interface in interfaces):
            notes = (f"there is no bridge {bridge}; if azure-vnet's has another name, give it as its `bridge`", *notes)
        return NodeState(
            rules=rules,
            interfaces=interfaces,
            addresses=addresses,
            gateways=gateways,
            neighbours=neighbours,
            routes=routes,
            notes=notes,
        )

    def remove_rules(self, rules: Sequence[str]) -> bool:
        """Delete rules of ebtables' nat table in one transaction, each as it was saved."""
        if not rules:
            return True
        programs = _programs()
        if programs is None:
            raise _no_ebtables()
        save, restore = programs
        deletions = "".join(f"-D{rule.removeprefix('-A')}\n" for rule in rules)
        done = _run(restore, "--noflush", text=f"*nat\n{deletions}COMMIT\n")
        if done.returncode == 0:
            return True
        error = _refusal(f"can't delete {len(rules)} rules of ebtables' table nat", restore, done)
        if error.is_not_permitted:
            raise error
        # What the programs say of a rule that isn't there differs by version; whether it is there doesn't.
        if Counter(rules) - Counter(parse_rules(_saved(save))):
            return False
        raise error

    def remove_neighbours(self, neighbours: Sequence[Neighbour]) -> tuple[Neighbour, ...]:
        """Delete neighbours; give those that weren't there any more, or have another MAC or owner by now."""
        with _as_azure_vnet_error():
            return self._around.delete_neighbours(neighbours)

    def remove_routes(self, routes: Sequence[HostRoute]) -> tuple[HostRoute, ...]:
        """Delete exactly these routes; give those that weren't there any more."""
        with _as_azure_vnet_error():
            return self._around.delete_host_routes(routes)

    def _rules(self, bridge: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The rules of table nat, and what couldn't be looked at."""
        notes = self._legacy_notes()
        try:
            programs = _programs()
            if programs is None:
                raise _no_ebtables()
            return parse_rules(_saved(programs[0])), notes
        except AzureVnetError as error:
            if error.is_not_permitted or any(interface.name == bridge for interface in self._around.interfaces()):
                raise
            # Without the bridge no frame meets any of them.
            return (), (*notes, f"rules weren't looked at: {error}")

    def _legacy_notes(self) -> tuple[str, ...]:
        if not (self._sys / _LEGACY_TABLE).exists():
            return ()
        note = (
            "the kernel also has table nat of the legacy ebtables, whose rules aren't looked at: list them with "
            "`ebtables-legacy -t nat -L --Lmac2`, and delete those of gone pods one by one with "
            "`ebtables-legacy --concurrent -t nat -D ...`"
        )
        return (note,)


@contextmanager
def _as_azure_vnet_error() -> Iterator[None]:
    try:
        yield
    except RouteError as error:
        hint = "; run as root" if error.is_not_permitted else ""
        raise AzureVnetError(f"{error}{hint}", errno=error.errno) from error


# --- ebtables --------------------------------------------------------------------------------------------------------


def _programs() -> tuple[str, str] | None:
    """What saves and what restores the rules that are in nftables; None if nothing here does."""
    if _version("ebtables-nft-save") is not None:
        return "ebtables-nft-save", "ebtables-nft-restore"
    if "nf_tables" in (_version("ebtables") or ""):
        return "ebtables-save", "ebtables-restore"
    return None


def _version(program: str) -> str | None:
    """What a program says of itself; None if there is none."""
    try:
        done = _run(program, "--version")
    except AzureVnetError as error:
        if error.errno == errnos.ENOENT:
            return None
        raise
    return done.stdout + done.stderr


def _no_ebtables() -> AzureVnetError:
    found = _version("ebtables")
    what = "there is no ebtables" if found is None else f"the ebtables here is the legacy one ({found.strip()})"
    return AzureVnetError(f"can't read ebtables' rules: {what}; {_PACKAGE}")


def _saved(save: str) -> str:
    done = _run(save)
    if done.returncode != 0:
        raise _refusal("can't read ebtables' rules", save, done)
    # With return code 0, and without a single rule.
    if any("`nat' is incompatible" in line for line in done.stdout.splitlines()):
        raise AzureVnetError(
            "can't read ebtables' rules: somebody has put rules into table nat that ebtables doesn't understand; "
            "list them with `nft list table bridge nat`, and have their owner move them to a table of their own"
        )
    return done.stdout


def _refusal(attempt: str, program: str, done: CompletedProcess[str]) -> AzureVnetError:
    said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
    is_forbidden = any(words in said.lower() for words in _NOT_PERMITTED)
    return AzureVnetError(
        f"{attempt}: `{program}` failed: {said}{'; run as root' if is_forbidden else ''}",
        errno=errnos.EPERM if is_forbidden else None,
    )


def _run(*argv: str, text: str | None = None) -> CompletedProcess[str]:
    # With counters, a saved rule is none that can be deleted.
    env = {name: value for name, value in os.environ.items() if name != "EBTABLES_SAVE_COUNTER"}
    env |= {"LC_ALL": "C", "PATH": SEARCH_PATH}
    # Own scope: a transaction is made or not, so a cancel waits for the answer.
    try:
        return CancelScope(timeout=ANSWER_SECONDS).run(argv, input=text, env=env, check=False)
    except TimedOut:
        raise AzureVnetError(
            f"`{argv[0]}` gave no answer within {ANSWER_SECONDS:g} s; is the kernel hanging?"
        ) from None
    except OSError as error:
        reason = f"it isn't there; {_PACKAGE}" if error.errno == errnos.ENOENT else os.strerror(error.errno or 0)
        raise AzureVnetError(f"can't run `{' '.join(argv)}`: {reason}", errno=error.errno) from error
