"""`python -m app` is `remat`."""

from app.cli import main

if __name__ == "__main__":
    main()
