"""Compare the log-probabilities of a trainer with those of an engine."""
