"""Let nodes with IPv6 answer the health probes of Azure's load balancer.

The balancer probes IPv6 services from ``fe80::1234:5678:9abc``. A node must not forward a packet with a link-local
source to another interface (RFC 4291, 2.5.6), so a probe that a pod should answer is lost. Stateless nftables rules
change the source of incoming probes, and restore the destination of outgoing answers.

``ruleset`` has pure functions for the rules and the route. ``port`` defines what the tasks need from a node, ``linux``
implements it, and ``part`` is the installation for the next boot.
"""
