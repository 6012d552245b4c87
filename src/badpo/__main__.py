"""The program ``badpo``, which ``python -m badpo`` is too."""

import signal
import sys


def main() -> None:
    """Run the command line; whoever stops the command, by Ctrl-C or SIGTERM, gets one line and the exit code 130."""
    signal.signal(signal.SIGTERM, _stop)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a closed one is None
        # a sign that the terminal's encoding lacks is written as a code, which JSON has too
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
