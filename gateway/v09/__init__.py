"""AMQP 0-9: the list of its differences, and its sessions."""
