"""The Azure plug-in's commands, and what it adds to other commands (``sections``)."""
