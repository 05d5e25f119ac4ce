"""AMQP 0-10: the final specification of 2008, as Apache Qpid speaks it. See ``session.py`` for the way in."""
