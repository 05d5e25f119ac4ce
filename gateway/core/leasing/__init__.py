"""Messages that a consumer has until it settles them: pull, leases and streams."""
