"""Messages to brokers: now, later, and under a key."""
