"""The watcher, which keeps routes and verdict correct after boot; each round repairs, checks, writes and reports."""
