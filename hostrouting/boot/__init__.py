"""What stays for the next boot: files, units, the gate, and the scripts that they run.

``Host`` bundles the two ports, routes and systemd, with the layout of the files.
Other rooms import the modules named here, and no others.
"""

__all__ = [
    "done",
    "fake_systemd",
    "files",
    "gate",
    "host",
    "installation",
    "layout",
    "locks",
    "manifest",
    "parts",
    "plan",
    "render",
    "seen",
    "systemctl",
    "systemd",
    "unit_files",
]
