"""Kill a tiny meta-training at every point at which it touches the disk, and resume it each time.

python kill_and_resume.py FOLDER   prints one JSON object for each point: what the resumed run left behind.
"""

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

from experiments import CONFIG, features

from fedsurf.evaluation.experiment import Experiment

SHORT = replace(CONFIG, surf=replace(CONFIG.surf, steps=2, validate_every=1))


def kill_at(point):
    """Let the process kill itself instead of doing its `point`-th flush, rename or removal."""
    operations = itertools.count(1)

    def deadly(operation, *needs):
        def wrapped(*arguments, **options):
            if all(need in options for need in needs) and next(operations) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*arguments, **options)

        return wrapped

    os.fsync = deadly(os.fsync)
    os.unlink = deadly(os.unlink, "dir_fd")  # as rmtree calls it
    Path.replace = deadly(Path.replace)
    shutil.rmtree = deadly(shutil.rmtree)


def in_child(action):
    """Run in a forked process; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the run failed with {os.WEXITSTATUS(status)}")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def contents(folder):
    """Return the checksum of every file in a folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def main(root):
    # What is written outlives a killed process without being flushed, which only takes time here.
    os.fsync = lambda _: None
    data = features()
    Experiment(SHORT, data).train(root / "whole")
    print(json.dumps({"point": 0, "files": contents(root / "whole")}))  # noqa: T201
    for point in itertools.count(1):
        folder = root / str(point)

        def train(folder=folder):
            Experiment(SHORT, data).train(folder, resume=True)

        def killed(point=point, train=train):
            kill_at(point)
            train()

        if in_child(killed) == 0:
            break
        train()
        print(json.dumps({"point": point, "files": contents(folder)}))  # noqa: T201
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
