"""Work that outlives a request: the port in `port.py`, threads of this process in `local.py`."""
