"""``python -m badpo`` is ``badpo``."""

from badpo.cli import main

if __name__ == "__main__":
    main()
