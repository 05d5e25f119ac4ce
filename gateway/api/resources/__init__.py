"""Resources over HTTP: what is set up, one module for each kind."""
