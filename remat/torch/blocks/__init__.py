"""Blocks of a model that share a budget: how the step calls them, plans of each kind, and which block has which."""
