"""From JSON to typed values, with all problems at once.

``routing`` is the ``hostRouting`` section, ``overlap`` its part about the check; ``schema`` makes a strict
reader of any attrs class.
Other rooms import the modules named here, and no others.
"""

__all__ = ["overlap", "routing", "schema"]
