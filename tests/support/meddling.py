"""Draw what other programs and operators do to an installed host."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

from sessions import Session, cidr_of
from worlds.crowded import in_family

from hostrouting.model.family import IpNetwork

# IPv6 hosts fail at most of it, and go on.
_PROGRAMS = (
    ("route del default",),
    ("route replace default via 10.1.0.254 dev eth0",),
    ("route add default via 10.2.0.1 dev eth1 metric 5",),
    ("route flush proto 217",),
    ("route add 172.16.5.0/24 dev ib0",),
    ("route add 172.16.5.0/24 dev ib1 metric 5",),
    ("route replace 172.16.0.0/17 via 10.1.0.9 dev eth0 proto static",),
    ("route add 172.16.0.0/17 via 10.1.0.9 dev eth0 metric 70 proto static",),
    ("route add 10.96.0.0/12 via 10.1.0.1 dev eth0 proto static",),
    ("route add 10.96.0.0/13 dev enp7s0 proto static",),
    ("route replace default dev wg0 table 52",),
    ("route replace default dev wg0 table 51820",),
    ("rule add pref 40 to 172.16.0.0/17 prohibit",),
    ("rule add pref 40 to 10.96.0.0/12 lookup 52",),
    ("rule add pref 5270 lookup 52",),
    ("rule add pref 2160 not fwmark 0xca6c lookup 51820",),
    ("rule add pref 2159 lookup main suppress_prefixlength 0",),
    ("rule del pref 2170",),
    ("rule flush proto 217",),
    ("addr del 172.16.0.10/16 dev ib0",),
    ("addr add 172.16.0.10/16 dev ib0",),
    ("addr add 172.16.200.1/24 dev enp7s0",),
    ("addr del 10.1.0.4/24 dev eth0",),
    ("addr add 10.1.0.77/24 dev eth0",),
    ("addr add 10.1.0.1/32 dev cni0",),
    ("link set ib0 down",),
    ("link set eth1 down",),
    ("link set eth0 down",),
    ("link set ib0 down", "link set ib0 up"),
    ("link set eth0 down", "link set eth0 up"),
    (
        "link set eth0 down",
        "link set eth0 up",
        "route add default via 10.1.0.1 dev eth0",
    ),
    ("link set eth0 mtu 1400",),
    ("link set ib0 mtu 2044",),
    ("route replace default via 10.1.0.1 dev eth0 mtu 1300",),
    ("link set eth1 down", "link set eth1 name eth7", "link set eth7 up"),
    ("link set ib0 down", "link set ib0 name ib7", "link set ib7 up"),
    ("route add blackhole 172.16.5.0/24",),
    ("route add unreachable 10.42.0.0/16",),
    ("route add blackhole 10.96.0.0/16 metric 9",),
    ("nexthop add id 7 via 10.1.0.1 dev eth0", "route add 10.96.0.0/16 nhid 7"),
    ("nexthop add id 8 dev ib0", "route replace 172.16.0.0/17 nhid 8"),
    ("route add 172.16.5.9/32 via 10.1.0.9 dev eth0",),
    ("route add 10.42.9.0/24 dev veth1",),
    ("route del 172.16.0.0/16 dev ib0 proto kernel",),
)
_FILES = (
    "etc/aks-flex-node/static-routes.sh",
    "etc/aks-flex-node/check-route-overlap.sh",
    "etc/hostrouting/gate.sh",
    "etc/hostrouting/gate.list",
    "etc/hostrouting/uplink",
    "etc/hostrouting/installed.json",
    "etc/systemd/system/static-routes.service",
)

Act = Callable[[Session, random.Random], str]


def meddle(on: Session, chance: random.Random) -> str:
    """Do something to a host.

    Returns:
        What was done.
    """
    acts: tuple[Act, ...] = (
        *([_programs] * 2),
        *([_near] * 5),
        *([_edit] * 4),
        _delete_ours,
        _damage,
        _remove,
        _routes_only,
        *([_try] * 2),
    )
    return chance.choice(acts)(on, chance)


def _programs(on: Session, chance: random.Random) -> str:
    steps = [step for steps in chance.sample(_PROGRAMS, chance.choice((1, 2))) for step in steps]
    on.ip(steps)
    return "; ".join(steps)


def _near(on: Session, chance: random.Random) -> str:
    """Do what touches expected CIDRs, or our routes and rules."""
    steps = [_step(on, chance) for _ in range(chance.choice((1, 1, 2)))]
    on.built.run(steps)
    return "; ".join(steps)


def _step(on: Session, chance: random.Random) -> str:
    section = json.loads(on.config.read_text())["hostRouting"]
    expected = section["routeOverlap"]["expectedCidrs"]
    cidr = ip_network(cidr_of(chance.choice(expected)))
    deeper = min(2, cidr.max_prefixlen - cidr.prefixlen)
    parts: list[IpNetwork] = [*cidr.subnets(deeper)]
    part = chance.choice(parts)
    dev = chance.choice(sorted(on.built.crowded.devs))
    router = in_family(chance.choice(("10.1.0.1", "10.1.0.9")), on.built.crowded.family)
    where = chance.choice((f"dev {dev}", f"dev {dev}", f"via {router} dev eth0"))
    metric = chance.choice(("", "", " metric 5", " metric 3000"))
    preference = chance.choice((1, 99, 2169, 2171, 5000, 5268, 5270, 32000))
    table = chance.choice(("52", "100", "main", "2170000"))
    ours = on.ours or [f"{part} dev {dev}"]
    own = ours[0].split()[0] if chance.random() < 0.5 else chance.choice(ours).split()[0]
    steps = (
        f"route add {part} {where}{metric} proto static",
        f"route add {cidr} {where}{metric} proto static",
        f"route replace {own} {where}{metric} proto static",
        f"route add blackhole {part}{metric}",
        f"route add {part} dev {dev} table 52",
        f"route del {cidr}",
        f"route del {chance.choice(ours)}",
        f"addr add {cidr[0] + 5 if cidr.num_addresses > 8 else cidr[0]}/{part.prefixlen} dev {dev}",
        f"rule add pref {preference} to {cidr} lookup {table}",
        f"rule add pref {preference} lookup {table}",
        f"rule add pref {preference} to {part} {chance.choice(('prohibit', 'unreachable'))}",
        f"link set {dev} down",
        f"addr flush dev {dev}",
    )
    return chance.choice(steps)


def _delete_ours(on: Session, chance: random.Random) -> str:
    routes = [*on.ours]
    if not routes:
        return "nothing to delete"
    some = chance.sample(routes, min(len(routes), chance.choice((1, 2))))
    steps = [f"route del {route}" for route in some]
    on.built.run(steps)
    return "; ".join(steps)


def _damage(on: Session, chance: random.Random) -> str:
    paths = [path for name in _FILES if (path := on.root / "host" / name).exists()]
    if not paths:
        return "nothing to damage"
    path = chance.choice(paths)
    # Without a manifest that can be read, commands only say so.
    is_manifest = path.name == "installed.json"
    how = chance.choice(("delete", "mode", *(() if is_manifest else ("append", "truncate"))))
    if how == "delete":
        path.unlink()
    elif how == "append":
        path.write_text(path.read_text() + "\n# edited\n")
    elif how == "truncate":
        path.write_text(path.read_text()[: path.stat().st_size // 2])
    else:
        path.chmod(0o644 if path.stat().st_mode & 0o111 else 0o666)
    return f"{how} {path.name}"


def _remove(on: Session, chance: random.Random) -> str:
    del chance
    return f"remove: {on.run('remove').code}"


def _routes_only(on: Session, chance: random.Random) -> str:
    edited = _edit(on, chance) if chance.random() < 0.5 else ""
    return f"{edited}; apply --routes-only: {on.run('apply', '--routes-only').code}"


def _try(on: Session, chance: random.Random) -> str:
    edited = _edit(on, chance) if chance.random() < 0.7 else ""
    tried = on.run("apply", "--try", "600").code
    if chance.random() < 0.3:
        edited += f"; {_programs(on, chance)}"
    end = chance.choice(("confirm", "revert", "its time is over", ""))
    ended: object = ""
    if end == "its time is over":
        ended = on.end_trial()
    elif end:
        ended = on.run(end).code
    return f"{edited}; apply --try: {tried}; {end} {ended}"


# --- CONFIG ---------------------------------------------------------------------------------------


def _edit(on: Session, chance: random.Random) -> str:
    """Change CONFIG, and sometimes apply it."""
    document = json.loads(on.config.read_text())
    section = document["hostRouting"]
    edits = chance.sample(_EDITS, chance.choice((1, 1, 2)))
    told = [edit(section, chance) for edit in edits]
    before = on.config.read_text()
    text = in_family(json.dumps(document, indent=2), on.built.crowded.family)
    on.config.write_text(text)
    if on.run("plan").code == 78:
        on.config.write_text(before)
        return "an invalid edit"
    if chance.random() < 0.4:
        told.append(f"apply: {on.run('apply').code}")
    return "; ".join(told)


def _static(section: dict[str, Any]) -> dict[str, Any]:
    static: dict[str, Any] = section.setdefault("staticRoutes", {"enabled": True})
    return static


def _drop_entry(section: dict[str, Any], chance: random.Random) -> str:
    static = section.get("staticRoutes", {})
    keys = [key for key in ("routes", "rules", "keep") if static.get(key)]
    if not keys:
        return "no entry to drop"
    key = chance.choice(keys)
    gone = static[key].pop(chance.randrange(len(static[key])))
    return f"without {key} {gone}"


def _drop_all(section: dict[str, Any], chance: random.Random) -> str:
    del chance
    section.pop("staticRoutes", None)
    return "without staticRoutes"


def _disable(section: dict[str, Any], chance: random.Random) -> str:
    del chance
    _static(section).update(enabled=False, routes=[], rules=[], keep=[])
    return "staticRoutes disabled"


def _mode(section: dict[str, Any], chance: random.Random) -> str:
    del chance
    overlap = section["routeOverlap"]
    overlap["mode"] = "WARN" if overlap.get("mode") == "STRICT" else "STRICT"
    return f"mode {overlap['mode']}"


def _uplinks(section: dict[str, Any], chance: random.Random) -> str:
    uplinks = chance.choice((None, ["eth0"], ["eth0"], ["eth1"], ["eth0", "eth1"], ["eth*"]))
    section["uplinks"] = uplinks
    return f"uplinks {uplinks}"


def _devs(section: dict[str, Any], chance: random.Random) -> str:
    expected = section["routeOverlap"]["expectedCidrs"]
    number = chance.randrange(len(expected))
    each = expected[number]
    cidr = each["cidr"] if isinstance(each, dict) else each
    devs = chance.choice((None, ["eth0"], ["ib*"], ["eth1"], ["eth0", "ib0"]))
    expected[number] = {"cidr": cidr, "devs": devs} if devs else cidr
    return f"{cidr} devs {devs}"


def _keep(section: dict[str, Any], chance: random.Random) -> str:
    each = chance.choice(
        ("ib*", "eth1", "enp7s0", "*", {"dev": "eth1", "gateway": "10.2.0.1"}, "wg0")
    )
    _static(section).setdefault("keep", []).append(each)
    _static(section)["enabled"] = True
    return f"keep {each}"


def _route(section: dict[str, Any], chance: random.Random) -> str:
    each = chance.choice(
        (
            {"destination": "172.16.0.0/17"},
            {"destination": "172.16.5.0/24"},
            {"destination": "10.96.0.0/12", "metric": 7},
            {"destination": "10.42.0.0/16", "gateway": "10.1.0.1", "dev": "eth0"},
            {"destination": "172.16.0.0/16", "dev": "ib0", "gateway": "onlink"},
            {"destination": "198.51.100.0/24", "gateway": "10.2.0.1", "dev": "eth1"},
        )
    )
    _static(section).setdefault("routes", []).append(each)
    _static(section)["enabled"] = True
    return f"route {each}"


def _rule(section: dict[str, Any], chance: random.Random) -> str:
    cidr = chance.choice(("172.16.0.0/16", "10.96.0.0/12", "10.42.0.0/16"))
    each = {"to": cidr, "priority": chance.choice((30, 1500, 5269, 32000))}
    _static(section).setdefault("rules", []).append(each)
    _static(section)["enabled"] = True
    return f"rule {each}"


def _expect(section: dict[str, Any], chance: random.Random) -> str:
    overlap = section["routeOverlap"]
    if len(overlap["expectedCidrs"]) > 1 and chance.random() < 0.5:
        gone = overlap["expectedCidrs"].pop(chance.randrange(len(overlap["expectedCidrs"])))
        return f"without {gone}"
    more = chance.choice(("172.16.0.0/16", "10.96.0.0/12", "192.0.2.0/24", "10.2.0.0/24"))
    overlap["expectedCidrs"].append(more)
    return f"expect {more}"


def _exempt(section: dict[str, Any], chance: random.Random) -> str:
    key = chance.choice(("allowedDevs", "containerDevs", "foreseen"))
    value = {"allowedDevs": ["ib*", "wg0"], "containerDevs": [], "foreseen": ["172.16.0.0/20"]}
    section["routeOverlap"][key] = value[key]
    return f"{key} {value[key]}"


_EDITS: tuple[Callable[[dict[str, Any], random.Random], str], ...] = (
    *(_drop_entry, _drop_entry, _drop_all, _disable, _mode, _uplinks, _uplinks, _devs),
    *(_keep, _route, _route, _rule, _expect, _exempt),
)
