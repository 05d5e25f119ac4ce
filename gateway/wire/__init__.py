"""Declared fields, compiled to straight-line encode and decode. Knows no AMQP version."""
