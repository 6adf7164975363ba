"""Install for the next boot that probes are rewritten before the consumer starts, and stay so."""

from __future__ import annotations

from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
from hostrouting.azure.probe.ruleset import PROBE, ROOM, host_route, render_ruleset
from hostrouting.boot.layout import Layout
from hostrouting.boot.parts import BootFile, Part
from hostrouting.boot.render import fill

_HEADER = "# Written by hostrouting; taken back by: hostrouting lb-probe remove\n"
# "-": whatever becomes of the probe's rules, firewalls of others start and stop as ever. "+": outside their sandbox.
_GIVE_BACK = f"-+/usr/sbin/nft -f /etc/aks-flex-node/{PROBE}.nft"
FLUSH_DROP_INS = {
    # It flushes as it starts, as it is reloaded, and as it stops; a restart is the last and the first.
    "nftables.service": (
        f"{_HEADER}[Service]\nExecStartPost={_GIVE_BACK}\nExecReload={_GIVE_BACK}\nExecStopPost={_GIVE_BACK}\n"
    ),
    # Machines require the reference's flush, and are now ordered after it: where it can't run it is skipped, as a
    # failure would fail them too (Result=dependency, which no Restart= tries again).
    "nftables-flush.service": (
        f"{_HEADER}[Unit]\nConditionFileIsExecutable=/usr/sbin/nft\n\n[Service]\nExecStartPost={_GIVE_BACK}\n"
    ),
}
# The unit runs again with each start of the consumer; where it fails, the consumer starts all the same. It is ordered
# after the flushes itself, but where it runs already, as one comes, it doesn't wait for that one.
_CONSUMER = f"{_HEADER}[Unit]\nWants={PROBE}.service\nAfter={PROBE}.service {' '.join(FLUSH_DROP_INS)}\n"


def probe_part(device: str, consumer: str, layout: Layout) -> Part:
    """Return what rewrites probes from boot on, and again after a flush of the ruleset.

    Args:
        device: by which probes come in, and the route to their rewritten source leads.
        consumer: the unit that starts after the rules are there.
        layout: where files are.

    Raises:
        ValueError: the device isn't the name of an interface.
    """
    drop_ins = {consumer: _CONSUMER, **FLUSH_DROP_INS}
    return Part(
        PROBE,
        is_gated=False,
        # Whether the node has IPv6 is told as it is installed; what is installed has it.
        config=HostNetworking(LoadBalancerProbe(True, (device,))).to_mapping(),
        files=(
            BootFile(layout.script(PROBE).with_suffix(".nft"), render_ruleset(device)),
            BootFile(layout.unit(PROBE), fill(f"{PROBE}.service", room=ROOM, ROUTE=host_route(device))),
            *(BootFile(layout.units / f"{unit}.d/hostrouting-{PROBE}.conf", text) for unit, text in drop_ins.items()),
        ),
    )
