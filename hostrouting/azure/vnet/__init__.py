"""Find and remove azure-vnet's leftovers for pods that it no longer serves.

For each pod, the CNI plug-in azure-vnet adds ebtables rules, a permanent neighbour and sometimes a
route. It removes them when the pod ends (DEL command). But if another CNI plug-in serves the node
by then, azure-vnet gets no DEL command, and the objects stay. Packets to a new pod with the same
address are then lost.

``bridge`` defines the protocol for access to a node's bridge, and ``linux`` implements it. All
functions in ``parse`` and ``leftovers`` are pure.
"""
