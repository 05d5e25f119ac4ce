"""Messages from a queue: taken once, filtered, kept, and dead letters."""
