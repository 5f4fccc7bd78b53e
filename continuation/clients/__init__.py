"""Clients of the gateway that come back to their stream after a dropped connection. They need no Django."""
