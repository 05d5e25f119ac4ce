"""AMQP without a version: operations, messages, values, selectors, SASL."""
