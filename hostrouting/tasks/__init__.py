"""The tasks for a bootstrap program, and functions that examine a host without changing it."""
