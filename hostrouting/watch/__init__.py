"""What keeps routes and verdict true after boot: a loop of look, repair, check and say.

``journal``, ``metrics`` and ``notify`` are where it is said.
Other rooms import the modules named here, and no others.
"""

__all__ = ["journal", "loop", "notify"]
