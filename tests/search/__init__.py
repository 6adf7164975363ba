"""Search for moments of an update at which the gate makes a wrong decision: ``./run search --help``."""
