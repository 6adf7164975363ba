"""The Azure plug-in at the command line: its own commands, and its part in other commands."""
