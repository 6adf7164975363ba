"""Check the expected CIDRs: read the host, judge it and propose a fix.

``check`` runs the check and ``findings`` defines its result. ``wording`` formats the result for people; ``markers`` and
``metrics`` write it for other programs. ``explanation`` follows one address through rules and tables. ``fleet`` checks
many snapshots.
"""
