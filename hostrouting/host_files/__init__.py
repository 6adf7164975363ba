"""Read the files in which other programs of a host keep their settings and state."""
