"""The doctor, which checks whether the gate is effective on this host, and what may break it.

``examine`` has a row for each check, and ``checks`` has the types that checks use.
"""
