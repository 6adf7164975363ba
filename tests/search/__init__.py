"""Search for points during an update at which the gate decides incorrectly."""
