"""Health probes of Azure's load balancer on nodes that have IPv6.

The balancer probes IPv6 services from ``fe80::1234:5678:9abc``. A node must not forward a packet with a link-local
source to another interface (RFC 4291, 2.5.6), so a probe that a pod should answer dies. Stateless nftables rules give
probes that come in another source, and answers that go out their destination back.

``ruleset`` is pure: the rules and the route. ``port`` is what the tasks ask of a node, ``linux`` the real one,
``part`` is what is installed for the next boot.
"""
