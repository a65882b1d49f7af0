"""`rapport completion`: a script that lets a shell complete commands and options. [UX-3]"""

from __future__ import annotations

from typing import Literal

from rapport.cli.terminal import write_bytes


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a completion script. bash: `eval "$(rapport completion bash)"` in ~/.bashrc; zsh:
    write it to a file _rapport in $fpath; fish: to ~/.config/fish/completions/rapport.fish.
    """
    from rapport.cli.main import app

    write_bytes(app.generate_completion(prog_name="rapport", shell=shell).encode())
