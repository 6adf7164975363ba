"""Check the snapshots of many hosts (``judge``), and group equal results (``groups``)."""
