"""rtnetlink(7) by hand: sockets that ask and sockets that listen, and a file for each family of messages."""
