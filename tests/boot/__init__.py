"""Tests on a booted systemd from each Debian release."""
