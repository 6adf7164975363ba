"""What keeps routes and verdict true after boot: a loop of look, repair, check and say.

``events`` has the words, ``outputs`` is where they go.
Other rooms import the modules named here, and no others.
"""

__all__ = ["loop", "outputs"]
