"""What is around the gateway in a world: the machine that it runs on, and whom it talks to."""
