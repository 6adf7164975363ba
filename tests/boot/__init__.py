"""Tests on a booted systemd, as Debian's releases ship it: ``trees`` makes the systems, ``rig`` boots them."""
