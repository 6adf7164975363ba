"""The watcher, which keeps the routes and the verdict up to date after boot."""
