"""`fedsurf` and `python -m fedsurf`."""

import signal
import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C while importing prints no traceback."""
    try:
        from fedsurf.cli import main as cli
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
