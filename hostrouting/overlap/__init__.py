"""The check of expected CIDRs: read -> judge -> fix.

``check`` runs it and ``findings`` are its result, for people in ``wording``, for other programs in ``markers`` and
``metrics``. ``explanation`` follows one address through rules and tables; ``fleet`` checks many snapshots.
"""
