"""An rtnetlink(7) implementation: sockets, and a module for each family of messages."""
