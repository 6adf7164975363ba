"""The routes port, what hostrouting asks of a kernel, and who meets it.

Netlink, a kernel in memory, one in a throw-away namespace, a recorded host; ``fib`` and ``rules`` are the pure model by
which a recording answers. ``managers`` tells which network manager claims an interface.
Other rooms import the modules named here, and no others.
"""

__all__ = [
    "channel",
    "fib",
    "managers",
    "memory",
    "namespace",
    "netlink",
    "nexthops",
    "port",
    "recording",
    "refusals",
    "rules",
    "snapshot",
    "waiting",
]
