"""The checks of an installation: does the gate hold on this host, and what may break it?

``examine`` has a row for each check, ``examination`` the values that a check returns.
"""
