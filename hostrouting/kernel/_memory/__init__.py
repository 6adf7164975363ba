"""Simulate how the kernel changes IPv4 routing, for ``FakeKernel``.

::

    net         struct net, with a ``Fib``'s answers; devices; net/ipv4/fib_trie.c: insert, delete, dump
    rules       net/core/fib_rules.c     policy rules
    semantics   net/ipv4/fib_semantics.c checks of new routes; changes when links go down or up
    devinet     net/ipv4/devinet.c and fib_frontend.c: links, addresses, and the resulting routes

Each module imports only the modules above it. Functions have the names of the kernel's functions. They model only what
can be observed in a namespace without VRFs and lightweight tunnels, in which nexthop objects only disappear together
with their interfaces.
"""
