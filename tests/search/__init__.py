"""A search for moments of an update at which a start of the consumer is decided wrongly: ``./run search --help``."""
