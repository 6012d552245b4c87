"""Entry point of the program ``badpo``, which ``python -m badpo`` also starts."""

import signal
import sys


def main() -> None:
    """Run the command line; if Ctrl-C or SIGTERM stops a command, print one line and exit with code 130."""
    signal.signal(signal.SIGTERM, _stop)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a closed stream is None
        # characters missing from the terminal's encoding become escape sequences, which are also valid in JSON
        stream.reconfigure(errors="backslashreplace")
    try:
        from badpo.cli.main import app

        app()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def _stop(signal_number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
