"""What made a result: versions, the commit if there is one, and the data."""

import hashlib
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from shutil import which

PACKAGES = ("fedsurf", "torch", "numpy", "scikit-learn", "cooper-optim")


def made_with() -> dict[str, str]:
    """Return the versions of what computes here, and the commit of a git checkout."""
    found = {"python": platform.python_version()}
    found |= {name: version(name) for name in PACKAGES}
    commit = commit_of(Path(__file__).parent)
    return found if commit is None else {**found, "commit": commit}


def commit_of(folder: Path) -> str | None:
    """Return the commit of the checkout of fedsurf that a folder is in, and whether it was changed."""
    git = which("git")
    if git is None:
        return None

    def ask(*words: str) -> str:
        done = subprocess.run(  # noqa: S603 - fixed words
            [git, "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.strip()

    try:
        # Installed into an environment inside another project, the commit would be that project's.
        if not ask("ls-files", "--", "provenance.py"):
            return None
        commit = ask("rev-parse", "--short=12", "HEAD")
        changed = ask("status", "--porcelain", "--untracked-files=no", "--", ".")
    except (subprocess.SubprocessError, OSError):
        return None
    return f"{commit} with changes" if changed else commit


def checksum_of(file: Path) -> str:
    """Return a checksum of a file's content."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
