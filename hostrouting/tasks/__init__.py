"""What a bootstrap program runs: tasks of ``phases``, and functions that change nothing.

Other rooms import the modules named here, and no others.
"""

__all__ = ["arguments", "configure", "install_routes", "preview", "queries", "reports", "trial"]
