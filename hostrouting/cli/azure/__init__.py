"""The Azure plug-in's own commands, and its part in other commands."""
