"""AMQP 0-9-1: the list of its differences, and its sessions."""
