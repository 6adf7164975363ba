"""Compare the reports on many random hosts with the kernel, address by address: ``./run audit``."""
