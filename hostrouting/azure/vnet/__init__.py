"""Find and remove what azure-vnet has left for pods that it no longer serves.

The CNI of that name gives each pod ebtables rules, a permanent neighbour and, at times, a route. Where pods move to
another CNI and no DEL is called, they stay, and packets to a pod that gets such an address again are lost.

``port`` is what the task asks of a node, ``linux`` the real one. ``parse`` and ``plan`` are pure.
"""
