"""Tasks and functions that the package ``hostrouting`` doesn't export.

``render`` returns a config's files, and ``installed_config`` returns the config that is installed.
``InstallRoutes`` changes only the kernel's routes and rules (``apply --routes-only``).
``TryRoutes`` installs routes for a limited time (``apply --try``). ``ConfirmTrial`` keeps these
routes (``confirm``), and ``EndTrial`` restores the installed ones (``revert``).
``RestoreOnFailure`` installs the former config again if a later task fails.
"""

from typing import TYPE_CHECKING

from hostrouting._lazy import lazily

if TYPE_CHECKING:
    from hostrouting.tasks.install_routes import InstallRoutes as InstallRoutes
    from hostrouting.tasks.queries import installed_config as installed_config
    from hostrouting.tasks.queries import render as render
    from hostrouting.tasks.restoring import RestoreOnFailure as RestoreOnFailure
    from hostrouting.tasks.trial import ConfirmTrial as ConfirmTrial
    from hostrouting.tasks.trial import EndTrial as EndTrial
    from hostrouting.tasks.trial import TryRoutes as TryRoutes
else:
    __all__, __getattr__, __dir__ = lazily(
        __name__,
        {
            "install_routes": "InstallRoutes",
            "queries": "installed_config render",
            "restoring": "RestoreOnFailure",
            "trial": "ConfirmTrial EndTrial TryRoutes",
        },
    )
