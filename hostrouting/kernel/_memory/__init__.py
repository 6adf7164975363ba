"""The kernel's IPv4 routing in memory, told in the kernel's own terms; ``FakeKernel`` is its face.

::

    device      what carries addresses: net_device, in_ifaddr
    net         what holds routes: struct net, tables, aliases, infos, next hops
    trie        net/ipv4/fib_trie.c      look-up in a table, insert, delete, flush, dump
    rules       net/core/fib_rules.c     policy rules; which table is asked
    semantics   net/ipv4/fib_semantics.c what a route must be like; links that die and come back
    frontend    net/ipv4/fib_frontend.c  the routes that follow addresses and links
    devinet     net/ipv4/devinet.c       addresses, primary and secondary
    output      net/ipv4/route.c         the answer to RTM_GETROUTE
    requests    what ``RouteBackend`` promises beyond the kernel, and the way in

Each module imports only those above it. Functions are named after the kernel's, and do no more than what shows
from outside in a namespace without VRFs, nexthop objects and lightweight tunnels.
"""
