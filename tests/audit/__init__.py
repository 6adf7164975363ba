"""``./run audit``: many random hosts, each of whose reports is compared with the kernel, address by address."""
