"""rtnetlink(7) by hand: sockets for queries and for events, and a file for each family of messages."""
