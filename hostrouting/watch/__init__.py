"""The watcher, which keeps routes and verdict true after boot: repair, check, write, report."""
