"""The files of the next boot: scripts, units and the gate.

``Host`` bundles the two ports, routes and systemd, with the layout of the files.
"""
