"""Keys of callers, and the audit log."""
