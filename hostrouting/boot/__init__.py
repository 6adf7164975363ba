"""Files that take effect at the next boot: scripts, units and the gate.

``Host`` combines the routes backend and systemd with the layout of the files.
"""
