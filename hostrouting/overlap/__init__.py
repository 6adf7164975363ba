"""Check the expected CIDRs: read the host's state, evaluate it, and propose a fix.

``check`` runs the check and ``findings`` defines its result. ``summary`` formats it as
human-readable text; ``markers`` writes it for other programs. ``explanation`` traces a single
address through the rules and tables.
"""
