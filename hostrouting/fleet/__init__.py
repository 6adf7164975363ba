"""Check the snapshots of many hosts: ``judge`` runs the checks, and ``groups`` collects equal results."""
