"""Find and remove azure-vnet's leftovers for pods that it no longer serves.

For each pod, the CNI plug-in azure-vnet adds ebtables rules, a permanent neighbour and sometimes a
route. If azure-vnet gets no DEL command for a pod, because another CNI plug-in now serves the node,
the rules, the neighbour and the route stay. Packets to a new pod with the same address are then
lost.

``bridge`` defines the protocol for access to a node's bridge, and ``linux`` implements it. All
functions in ``parse`` and ``leftovers`` are pure.
"""
