"""What runs when, and where it lives. Imports graph only in lower, realize, pipeline and errors."""
