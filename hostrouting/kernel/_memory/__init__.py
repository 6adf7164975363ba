"""Simulate how the kernel changes IPv4 routing, for ``FakeKernel``.

::

    net         struct net, with a ``Fib``'s answers; devices; net/ipv4/fib_trie.c: insert, delete, dump
    rules       net/core/fib_rules.c     policy rules
    semantics   net/ipv4/fib_semantics.c requirements on routes; links that die and come back
    devinet     net/ipv4/devinet.c and fib_frontend.c: links, addresses, and the routes that follow them

Each module imports only the modules above it. Functions have the names of the kernel's functions. They model only what
can be observed in a namespace without VRFs and lightweight tunnels, in which nexthop objects only disappear together
with their interfaces.
"""
