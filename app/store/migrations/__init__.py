"""How the tables came to be, a file a step; `remat migrate` runs those that a database lacks."""
