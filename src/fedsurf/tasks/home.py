"""Where fedsurf keeps what it fetched and computed: data and features."""

import os
from pathlib import Path

import pooch


def home() -> Path:
    """Return the folder of the environment variable FEDSURF_HOME, or else the user's cache."""
    chosen = os.environ.get("FEDSURF_HOME")
    return Path(chosen).expanduser() if chosen else Path(pooch.os_cache("fedsurf"))
