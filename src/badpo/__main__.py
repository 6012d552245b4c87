"""The program ``badpo``, which ``python -m badpo`` is too."""

import sys


def main() -> None:
    """Run the command line; who interrupts while it loads is answered in a line."""
    try:
        from badpo.cli.main import app

        app()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
