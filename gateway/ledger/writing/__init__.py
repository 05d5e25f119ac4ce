"""One thread that groups what waits into one transaction."""
