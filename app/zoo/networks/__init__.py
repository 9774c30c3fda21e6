"""Networks in torch, each written from its paper; `app/zoo/catalogue.py` has their dimensions."""
