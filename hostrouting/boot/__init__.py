"""Files that take effect at the next boot: scripts, units and the gate.

``Host`` bundles the routes backend, systemd and the file layout.
"""
