"""``./run audit``: many random hosts, and what is said of them held to what the kernel does, address by address."""
