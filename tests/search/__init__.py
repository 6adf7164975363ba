"""A search for moments of an update at which the gate decides wrongly about a start: ``./run search --help``."""
