"""An rtnetlink(7) implementation: sockets for queries and notifications, and a module per message family."""
