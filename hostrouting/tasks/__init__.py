"""What a bootstrap program runs: tasks of ``phases``, made of what the rooms below offer.

Other rooms import the modules named here, and no others.
"""

__all__ = ["configure", "install_routes", "reports", "trial"]
