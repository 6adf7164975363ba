"""Simulate the kernel's IPv4 routing for ``FakeKernel``.

- ``net``: network namespaces (struct net) with their devices, entries (net/ipv4/fib_trie.c) and
  policy rules (net/core/fib_rules.c)
- ``semantics``: validation of new routes, and updates when links change (net/ipv4/fib_semantics.c)
- ``devinet``: links, addresses and their routes (net/ipv4/devinet.c and fib_frontend.c)

Each module imports only those listed before it. Functions are named after their kernel
counterparts. VRFs and lightweight tunnels aren't modelled. Here, a nexthop object disappears only
with its interfaces.
"""
