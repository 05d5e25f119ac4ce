"""What is still owed: deliveries, scheduled publishes, keys and branches."""
