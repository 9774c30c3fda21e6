"""Deletion by a tenant, retention, and verification of all rows."""
