"""The doctor, which checks whether the gate is effective on this host and looks for risks.

The ``examine`` module lists all checks, and ``check_types`` defines their types.
"""
