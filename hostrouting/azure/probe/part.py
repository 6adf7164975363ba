"""What is installed for the next boot, so that probes are rewritten before the consumer starts, and stay so."""

from __future__ import annotations

from hostrouting.azure.config import HostNetworking, Ipv6Detection, LoadBalancerProbe
from hostrouting.azure.probe.ruleset import PROBE, ROOM, render_ruleset
from hostrouting.boot.layout import SEARCH_PATH, Layout
from hostrouting.boot.parts import BootFile, Part, unit_text
from hostrouting.boot.render import fill
from hostrouting.model.parsing import parse_device

# How long the oneshot waits for the device of the pinned route.
WAIT_SECONDS = 30
_UNIT_SECONDS = 120

# "-": whatever becomes of the probe's rules, firewalls of others start and stop as ever. "+": outside their sandbox.
_GIVE_BACK = "-+/etc/aks-flex-node/load-balancer-probe.sh rules"
# Machines require the reference's flush. Ordered after it they fail with it (Result=dependency, which no Restart=
# tries again), so without nft it is skipped: whether that holds a machine back is for our gate to say.
_IF_NFT = "".join(f"ConditionFileIsExecutable=|{folder}/nft\n" for folder in SEARCH_PATH.split(":"))
_FLUSH_HEADER = (
    "# Written by hostrouting; taken back by: hostrouting lb-probe remove\n"
    "# Whatever this unit flushes, the rules for the load balancer's probes come back.\n"
)
FLUSH_DROP_INS = {
    # It flushes as it starts, as it is reloaded, and as it stops; a restart is the last and the first.
    "nftables.service": (
        f"[Service]\nExecStartPost={_GIVE_BACK}\nExecReload={_GIVE_BACK}\nExecStopPost={_GIVE_BACK}\n"
    ),
    "nftables-flush.service": f"[Unit]\n{_IF_NFT}\n[Service]\nExecStartPost={_GIVE_BACK}\n",
}


def probe_part(device: str, layout: Layout, *, required: bool) -> Part:
    """What rewrites probes from boot on, and again after whoever flushes the ruleset.

    Args:
        device: by which probes come in, and the route to their rewritten source leads.
        layout: where files are.
        required: whether the consumer must not start without the rules.

    Returns:
        The part.

    Raises:
        ValueError: it isn't the name of an interface.
    """
    description = "Rewrite the IPv6 health probes of Azure's load balancer, so that pods can answer them"
    unit = unit_text(PROBE, description, _UNIT_SECONDS, *FLUSH_DROP_INS, remover="hostrouting lb-probe remove")
    # Whether the node has IPv6 is told now; what is installed has it.
    probe = LoadBalancerProbe(True, (device,), Ipv6Detection.ALWAYS, required, 0)
    return Part(
        PROBE,
        is_blocking=required,
        config=HostNetworking(probe).to_mapping(),
        files=(
            BootFile(layout.script(PROBE).with_suffix(".nft"), render_ruleset(device)),
            BootFile(layout.script(PROBE), render_script(device, required=required), 0o755),
            BootFile(layout.unit(PROBE), unit),
            *(BootFile(layout.gate(unit), _FLUSH_HEADER + text) for unit, text in FLUSH_DROP_INS.items()),
        ),
    )


def render_script(device: str, *, required: bool) -> str:
    """Render the script that loads the rules and pins the route.

    Args:
        device: by which probes come in.
        required: whether a failure holds the consumer back, so that it is looked at again before.

    Returns:
        The text of an executable file.

    Raises:
        ValueError: it isn't the name of an interface.
    """
    flag, seconds = "yes" if required else "no", f"{WAIT_SECONDS:d}"
    return fill(f"{PROBE}.sh", room=ROOM, REQUIRED=flag, WAIT_SECONDS=seconds, DEVICE=parse_device(device))
