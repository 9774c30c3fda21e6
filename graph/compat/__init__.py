"""What only one of the original systems had: their names, their lists, their conventions. Nothing else imports it."""
