"""Fronts on a bad day: real brokers and the gateway are killed under clients of AMQP."""
