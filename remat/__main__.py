"""`python -m remat` is `remat`."""

from app.cli.typer_app import main

if __name__ == "__main__":
    main()
