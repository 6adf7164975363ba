"""Tests on a booted systemd of each Debian release: ``trees`` builds the systems, and ``rig`` boots them."""
