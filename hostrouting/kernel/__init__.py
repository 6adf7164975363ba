"""Routing backends: netlink, a disposable network namespace, an in-memory kernel and snapshots.

``port`` defines the interface of all these backends. ``fib`` and ``rules`` model the kernel's
lookup for snapshots and for the in-memory kernel.
"""
