"""The doctor: check whether the gate holds on this host, and what may break it.

``examine`` has a row for each check, ``checks`` the values that a check returns.
"""
