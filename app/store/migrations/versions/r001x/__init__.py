"""Revisions 0010 to 0019."""
