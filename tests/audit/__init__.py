"""Compare hostrouting's reports for random hosts with the kernel, address by address."""
