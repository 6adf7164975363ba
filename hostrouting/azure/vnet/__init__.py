"""Find and remove azure-vnet's leftovers for pods that it no longer serves.

The CNI azure-vnet gives each pod ebtables rules, a permanent neighbour and sometimes a route. If pods move to another
CNI and no DEL is called, these remain, and packets to a pod that gets such an address again are lost.

``port`` is what the task needs from a node, ``linux`` the real one. ``parse`` and ``plan`` are pure.
"""
