"""The routes port and its implementations: netlink, a kernel in memory, a throw-away namespace, and a snapshot.

``fib`` and ``rules`` are the pure model behind a snapshot's answers. ``managers`` finds the network manager that claims
an interface.
"""
