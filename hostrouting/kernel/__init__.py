"""Access the kernel's routes through netlink, in a throw-away namespace, in memory or in a snapshot.

``port`` defines the interface that all of these implement. ``fib`` and ``rules`` are the pure model that computes the
answers of a snapshot. ``managers`` finds the network manager that claims an interface.
"""
