"""How people reach it: command line, HTTP, jobs."""
