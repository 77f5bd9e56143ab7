"""Starting several processes that train together, with torch's own launcher."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from vitrail.training.recipe import RunSettings


def is_launched() -> bool:
    """Whether this process was started by a launcher."""
    return "RANK" in os.environ


def launch(words: Sequence[str], settings: RunSettings) -> int:
    """Run `vitrail WORDS` in as many processes as the recipe asks for on this machine; the exit code of the first
    that failed.

    Over several machines the same command is started on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set, as
    Slurm scripts do.
    """
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={settings.devices}"]
    if settings.nodes == 1:
        command += ["--standalone"]
    else:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if name not in os.environ]
        if missing:
            raise ValueError(
                f"nodes={settings.nodes} needs {', '.join(missing)} in the environment of every machine "
                f"(this one is {socket.gethostname()}): see docs/distributed.md"
            )
        command += [
            f"--nnodes={settings.nodes}",
            f"--node-rank={os.environ['NODE_RANK']}",
            f"--master-addr={os.environ['MASTER_ADDR']}",
            f"--master-port={os.environ['MASTER_PORT']}",
        ]
    return subprocess.run([*command, "-m", "vitrail", *words], check=False).returncode
