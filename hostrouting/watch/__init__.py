"""The watcher, which keeps routes and verdict correct after boot: repair, check, write, report."""
