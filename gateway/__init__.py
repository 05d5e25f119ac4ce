"""One gateway for AMQP 0-8 to 0-10 brokers, with HTTP for everyone else."""

__version__ = "0.1.0"
