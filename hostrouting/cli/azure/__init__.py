"""The Azure plug-in's commands, and its additions to other commands (``sections``)."""
