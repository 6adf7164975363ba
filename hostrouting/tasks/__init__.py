"""Tasks for bootstrap programs, and read-only functions for inspecting a host."""
