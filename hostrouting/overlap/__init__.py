"""The way of an expected CIDR: reading -> judge -> fix.

``check`` goes it; ``findings`` are its result, ``wording`` and ``outputs`` what people and other programs get of that.
``explanation`` is the way of one address through rules and tables; ``fleet`` checks many recorded hosts.
Other rooms import the modules named here, and no others.
"""

__all__ = ["check", "explanation", "findings", "fleet", "outputs", "wording"]
