"""``python -m badpo`` is ``badpo``."""

from badpo.cli.main import main

if __name__ == "__main__":
    main()
