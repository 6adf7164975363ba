"""What is installed for the next boot, so that probes are rewritten before the consumer starts, and stay so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe
from hostrouting.azure.probe.ruleset import render_ruleset
from hostrouting.boot import files
from hostrouting.boot.gate import FLUSHERS, PROBE
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.boot.parts import BootFile, Part, unit_text
from hostrouting.boot.readback import values_of
from hostrouting.boot.render import fill
from hostrouting.model.parsing import parse_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot.layout import Layout
    from hostrouting.boot.parts import Manifest

__all__ = ["WAIT_SECONDS", "installed_config", "probe_part", "render_script"]

# How long the oneshot waits for the device of the pinned route.
WAIT_SECONDS = 30

# "-": whatever becomes of the probe's rules, firewalls of others start and stop as ever. "+": outside their sandbox.
_GIVE_BACK = "-+/etc/aks-flex-node/load-balancer-probe.sh rules"
# Machines require the reference's flush. Ordered after it they fail with it (Result=dependency, which no Restart=
# tries again), so without nft it is skipped: whether that holds a machine back is for our gate to say.
_IF_NFT = "".join(f"ConditionFileIsExecutable=|{folder}/nft\n" for folder in SEARCH_PATH.split(":"))
_FLUSH_DROP_INS = {
    # It flushes as it starts, as it is reloaded, and as it stops; a restart is the last and the first.
    "nftables.service": (
        f"[Service]\nExecStartPost={_GIVE_BACK}\nExecReload={_GIVE_BACK}\nExecStopPost={_GIVE_BACK}\n"
    ),
    "nftables-flush.service": f"[Unit]\n{_IF_NFT}\n[Service]\nExecStartPost={_GIVE_BACK}\n",
}


def probe_part(devices: Sequence[str], layout: Layout, *, required: bool) -> Part:
    """What rewrites probes from boot on, and again after whoever flushes the ruleset.

    Args:
        devices: by which probes come in; the route to their rewritten source is pinned on the first that can carry it.
        layout: where files are.
        required: whether the consumer must not start without the rules.

    Returns:
        The part.

    Raises:
        ValueError: one isn't the name of an interface, or there is none.
    """
    return Part(
        PROBE,
        is_blocking=required,
        files=(
            BootFile(layout.probe_rules, render_ruleset(devices)),
            BootFile(layout.script(PROBE), render_script(devices, required=required), 0o755),
            BootFile(layout.unit(PROBE), unit_text(PROBE, WAIT_SECONDS)),
            *(BootFile(layout.flush_drop_in(unit), _flush_drop_in_text(unit)) for unit in FLUSHERS),
        ),
    )


def render_script(devices: Sequence[str], *, required: bool) -> str:
    """Render the script that loads the rules and pins the route.

    Args:
        devices: by which probes come in, the preferred ones first.
        required: whether a failure holds the consumer back, so that it is looked at again before.

    Returns:
        The text of an executable file.

    Raises:
        ValueError: one isn't the name of an interface.
    """
    names = dict.fromkeys(map(parse_device, devices))
    flag, seconds = "yes" if required else "no", f"{WAIT_SECONDS:d}"
    return fill(f"{PROBE}.sh", REQUIRED=flag, WAIT_SECONDS=seconds, DEVICES="\n".join(names))


def _read_script(text: str) -> tuple[tuple[str, ...], bool] | None:
    """What a script was rendered from: ``render_script`` backwards.

    Returns:
        The devices, and whether the rules are required; None if this version renders no such text.
    """
    values = values_of(f"{PROBE}.sh", text)
    if values is None:
        return None
    devices, required = tuple(values["DEVICES"].splitlines()), values["REQUIRED"] == "yes"
    try:
        return (devices, required) if devices and render_script(devices, required=required) == text else None
    except ValueError:
        return None


def installed_config(layout: Layout, manifest: Manifest) -> HostNetworking | None:
    """What the installed part was rendered from.

    Args:
        layout: where.
        manifest: what is installed there.

    Returns:
        A config that asks for just that; an empty one if the part isn't installed, None if it can't be told.

    Raises:
        FileError: the script can't be read.
    """
    if PROBE not in manifest.parts:
        return HostNetworking()
    found = _read_script(files.read_text(layout.script(PROBE)) or "")
    if found is None:
        return None
    devices, required = found
    # Whether the node has IPv6 was told when it was installed.
    probe = LoadBalancerProbe(True, devices, Ipv6Detection.ALWAYS, required, 0)
    return HostNetworking(probe, consumer=manifest.consumer)


def _flush_drop_in_text(unit: str) -> str:
    return (
        "# Written by hostrouting; taken back by: hostrouting lb-probe remove\n"
        "# Whatever this unit flushes, the rules for the load balancer's probes come back.\n"
        f"{_FLUSH_DROP_INS[unit]}"
    )
