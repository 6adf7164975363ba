"""Find and remove azure-vnet's leftovers for pods that it no longer serves.

For each pod, the CNI plug-in azure-vnet adds ebtables rules, a permanent neighbour and sometimes a
route. If a pod moves to another CNI plug-in and azure-vnet gets no DEL command, these are left
behind. Then, packets to a new pod with the same address are lost.

``port`` defines the protocol for access to a node, and ``linux`` implements it. All functions in
``parse`` and ``leftovers`` are pure.
"""
