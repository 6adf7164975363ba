"""Find and remove azure-vnet's leftovers for pods that it no longer serves.

For each pod, the CNI azure-vnet adds ebtables rules, a permanent neighbour and sometimes a route. If pods move to
another CNI without a DEL, these remain. Packets to a pod that later gets the same address are then lost.

``port`` defines what the task needs from a node, and ``linux`` implements it. The functions of ``parse`` and ``plan``
are pure.
"""
