"""One attempt: its request, its signature, its outcome, and when the next one is made."""
