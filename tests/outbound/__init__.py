"""Requests of the gateway's own: the guard, the octets, and servers that misbehave."""
