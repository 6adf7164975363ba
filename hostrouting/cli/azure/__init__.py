"""The Azure plug-in's commands and its hooks in other commands."""
