"""Tests on a booted systemd of each Debian release."""
