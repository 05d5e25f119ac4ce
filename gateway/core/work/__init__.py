"""Background work: bridges, taps, checks and counts, and which process does which."""
