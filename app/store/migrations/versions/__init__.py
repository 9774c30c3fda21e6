"""The steps, each named by its number, ten a folder."""
