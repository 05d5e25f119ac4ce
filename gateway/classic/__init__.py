"""What AMQP 0-8 and 0-9-1 share: frames, tables, properties, methods, channels and connections of both roles."""
