"""The tasks for a bootstrap program, and functions that change nothing."""
