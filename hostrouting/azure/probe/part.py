"""The installation for the next boot, which rewrites probes from before the consumer starts."""

from __future__ import annotations

from hostrouting.azure.config import HostNetworking, LoadBalancerProbe
from hostrouting.azure.probe.ruleset import PROBE, ROOM, host_route, render_ruleset
from hostrouting.boot.layout import Layout
from hostrouting.boot.parts import BootFile, Part
from hostrouting.boot.render import fill

_HEADER = "# Written by hostrouting; taken back by: hostrouting lb-probe remove\n"
# With "-", other firewalls start and stop as usual whatever happens to the probe's rules. With "+", the command runs
# outside their sandbox.
_GIVE_BACK = f"-+/usr/sbin/nft -f /etc/aks-flex-node/{PROBE}.nft"
FLUSH_DROP_INS = {
    # This service flushes the ruleset when it starts, reloads and stops. A restart is a stop and a start.
    "nftables.service": (
        f"{_HEADER}[Service]\nExecStartPost={_GIVE_BACK}\nExecReload={_GIVE_BACK}\nExecStopPost={_GIVE_BACK}\n"
    ),
    # Machines require the reference's flush, and are now ordered after it. If it can't run it is skipped, because a
    # failure would make them fail too (Result=dependency, which Restart= doesn't retry).
    "nftables-flush.service": (
        f"{_HEADER}[Unit]\nConditionFileIsExecutable=/usr/sbin/nft\n\n[Service]\nExecStartPost={_GIVE_BACK}\n"
    ),
}
# The unit runs again with each start of the consumer, which starts even if the unit fails. The unit itself is ordered
# after the flushes. But if it is already running when a flush starts, it doesn't wait for that flush.
_CONSUMER = f"{_HEADER}[Unit]\nWants={PROBE}.service\nAfter={PROBE}.service {' '.join(FLUSH_DROP_INS)}\n"


def probe_part(device: str, consumer: str, layout: Layout) -> Part:
    """Return the part that rewrites probes from boot on, and again after a flush of the ruleset.

    Args:
        device: the interface through which probes arrive, and to which the route to their rewritten source leads.
        consumer: the unit that starts once the rules are loaded.
        layout: the paths of the files.

    Raises:
        ValueError: the device isn't the name of an interface.
    """
    drop_ins = {consumer: _CONSUMER, **FLUSH_DROP_INS}
    return Part(
        PROBE,
        is_gated=False,
        # IPv6 is detected during the installation, so a host with this part has it.
        config=HostNetworking(LoadBalancerProbe(True, (device,))).to_mapping(),
        files=(
            BootFile(layout.script(PROBE).with_suffix(".nft"), render_ruleset(device)),
            BootFile(layout.unit(PROBE), fill(f"{PROBE}.service", room=ROOM, ROUTE=host_route(device))),
            *(BootFile(layout.units / f"{unit}.d/hostrouting-{PROBE}.conf", text) for unit, text in drop_ins.items()),
        ),
    )
