"""The Azure plug-in at the command line: its own words, and what other commands get from it."""
