"""The routes port, and those that implement it: netlink, a kernel in memory, a throw-away namespace, a snapshot.

``fib`` and ``rules`` are the pure model by which a snapshot answers. ``managers`` tells which network manager claims an
interface.
"""
