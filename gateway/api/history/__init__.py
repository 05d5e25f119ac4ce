"""What happened, over HTTP: events, logs, timelines and the audit log."""
