"""Keep runs by name and number, compare them, and draw their trend."""
