"""Entry point of `python -m remat` and of the console script `remat`."""


def main() -> None:
    """Run one command and exit with its code."""
    from app.cli.typer_app import main as run  # imported here: the wheel and the checkout share this entry point

    run()


if __name__ == "__main__":
    main()
