"""Does the gate hold on this host, and what may break it?

``examine`` has a row for each thing that is looked at, ``examination`` has what a row is made of.
Other rooms import the modules named here, and no others.
"""

__all__ = ["examination", "examine"]
