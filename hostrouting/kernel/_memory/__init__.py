"""Change IPv4 routing as the kernel does, in memory and in the kernel's own terms, behind ``FakeKernel``.

::

    net         struct net, with a ``Fib``'s answers; devices; net/ipv4/fib_trie.c: insert, delete, dump
    rules       net/core/fib_rules.c     policy rules
    semantics   net/ipv4/fib_semantics.c requirements on routes; links that die and come back
    devinet     net/ipv4/devinet.c and fib_frontend.c: links, addresses, and the routes that follow them

Each module imports only those above it. Functions are named after the kernel's, and model only what can be observed
in a namespace without VRFs and lightweight tunnels, where nexthop objects only go with their interfaces.
"""
