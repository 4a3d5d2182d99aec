"""`fedsurf completion`: tab completion for a shell."""

from typing import Annotated, Literal

import tyro


def completion(
    shell: Annotated[
        tyro.conf.Positional[Literal["bash", "zsh", "tcsh"]], tyro.conf.arg(metavar="SHELL")
    ],
) -> None:
    """Print a script that completes commands and options in a shell.

    For bash, write it to ~/.local/share/bash-completion/completions/fedsurf; for zsh, to the
    file _fedsurf in a folder of $fpath.

    Args:
        shell: bash, zsh or tcsh.
    """
    from fedsurf.cli.main import complete_app

    complete_app().cli(prog="fedsurf", args=["--tyro-print-completion", shell])
