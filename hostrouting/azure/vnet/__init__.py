"""Find and remove azure-vnet's leftovers for pods that it no longer serves.

For each pod, the CNI azure-vnet adds ebtables rules, a permanent neighbour and sometimes a route.
If pods move to another CNI without a DEL, these are left behind. Packets to a new pod with the same
address are then lost.

``port`` defines the protocol for access to a node, and ``linux`` implements it. All functions in
``parse`` and ``leftovers`` are pure.
"""
