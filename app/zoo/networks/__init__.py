"""PyTorch modules of the zoo, written from their papers; `app/zoo/catalogue.py` has their dimensions."""
