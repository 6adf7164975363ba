"""Implement rtnetlink(7), with sockets for queries and for events, and with a file for each family of messages."""
