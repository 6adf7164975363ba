"""The tasks that a bootstrap program runs, and the functions that change nothing."""
