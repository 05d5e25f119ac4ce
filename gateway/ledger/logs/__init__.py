"""The logs of events and of messages, by sequence number."""
