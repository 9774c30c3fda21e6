"""Revisions 0001 to 0009."""
