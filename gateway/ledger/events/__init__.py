"""What happened to messages: asked, counted, followed, and let go."""
