"""A stream that outlives its client's connection: a log of its events, tokens to come back with, and who reads it."""
