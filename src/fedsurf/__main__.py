"""What `python -m fedsurf` does: the same as the command `fedsurf`."""

from fedsurf.cli import main

main()
