"""Where graphs, plans and operations are kept: the port in `port.py`, a folder in `folder.py`."""
