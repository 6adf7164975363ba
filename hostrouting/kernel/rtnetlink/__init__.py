"""rtnetlink(7) by hand: sockets to query and sockets to listen, and a file for each family of messages."""
