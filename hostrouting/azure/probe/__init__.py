"""Health probes of Azure's load balancer on nodes with IPv6.

The balancer probes IPv6 services from ``fe80::1234:5678:9abc``. A node must not forward a packet with a link-local
source to another interface (RFC 4291, 2.5.6), so a probe that a pod should answer is lost. Stateless nftables rules
change the source of incoming probes, and restore the destination of outgoing answers.

``ruleset`` is pure: the rules and the route. ``port`` is what the tasks need from a node, ``linux`` the real one,
``part`` the installation for the next boot.
"""
