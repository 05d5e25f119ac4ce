"""One channel of a client, and its channel at the upstream broker."""
