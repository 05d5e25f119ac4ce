"""Messages over HTTP: published, scheduled, pulled and streamed."""
