"""What `manage.py demo` plays: broken answers that are continued, watched as a client sees them."""
