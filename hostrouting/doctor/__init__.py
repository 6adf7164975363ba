"""The checks of an installation: does the gate hold on this host, and what may break it?

``examine`` has a row for each check, ``check`` the values that a check returns.
"""
