"""Let IPv6 nodes answer the health probes of Azure's load balancer.

The load balancer probes IPv6 services from ``fe80::1234:5678:9abc``. A node must not forward a
packet with a link-local source address (RFC 4291, 2.5.6), so probes never reach a pod. Stateless
nftables rules give incoming probes another source address, and give outgoing replies the load
balancer's address as their destination.

``ruleset`` has pure functions that render the rules, the route, and the files for the next boot.
``node`` has the protocol for access to a node, and the implementation for Linux.
"""
