"""AMQP 0-8: the list of its differences, and its sessions."""
