"""A throw-away host for the real command line, in network and mount namespaces with a private /run and /etc."""

from __future__ import annotations

# /etc/aks-flex-node may not exist on this machine, so an overlay covers all of /etc. No write leaves the namespaces.
SETUP = r"""
set -eu
mount -t tmpfs none "$SCRATCH"
mkdir "$SCRATCH/upper" "$SCRATCH/work"
mount -t overlay none -o "lowerdir=/etc,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" /etc
mount -t tmpfs none /run
mkdir -p /etc/aks-flex-node
ip link set lo up
ip link add eth0 type veth peer name peer0
ip link add ib0 type veth peer name peer1
for link in eth0 ib0 peer0 peer1; do ip link set "$link" up; done
ip addr add 10.1.0.4/24 dev eth0
ip addr add 172.16.0.10/16 dev ib0
ip route add default via 10.1.0.1 proto dhcp metric 100
hostrouting() { "$PYTHON" -m hostrouting "$@"; }
"""

CONFIG = {
    "hostRouting": {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"], "mode": "STRICT"},
        "waitSeconds": 0,
    }
}
