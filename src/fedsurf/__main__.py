"""What `fedsurf` and `python -m fedsurf` do: import the command line, which takes seconds, and run it."""

import signal
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


def main() -> None:
    """Run the command line; Ctrl-C is no traceback, and the version no wait, before it is imported."""
    try:
        if sys.argv[1:] == ["--version"]:
            from fedsurf import __version__

            sys.stdout.write(f"fedsurf {__version__}\n")
            sys.exit(0)
        from fedsurf.cli import main as cli
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses it twice wants none, too
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    cli.main()


if __name__ == "__main__":
    main()
