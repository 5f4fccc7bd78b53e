"""Random streams against what must always hold. `python -m tests.fuzz --help` runs it for as long as you like."""
