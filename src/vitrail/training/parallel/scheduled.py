"""A run as a job of Slurm, through submitit: told to save before its time is up, and queued again until it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitrail.settings.launching import SlurmSettings
from vitrail.settings.running import RunSettings

_PORT_FROM, _NUM_PORTS = 20_000, 20_000


class TrainingJob:
    """What a job runs: the same command, which begins the run or goes on with it.

    submitit calls `checkpoint` when Slurm says that the time is up or that the machine is wanted: the command is told
    to save and stop, and the job is queued again.
    """

    def __init__(self, words: Sequence[str], *, folder: Path) -> None:
        self.words, self.folder = list(words), str(folder)
        self._process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}

    def __call__(self) -> int:
        """Train on this machine, with the others of the job where there are several; the exit code."""
        command = [sys.executable, "-m", "vitrail", *self.words]
        with _ignored(getattr(signal, "SIGUSR2", None)):
            self._process = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **_meeting_place()})
        code = self._process.wait()
        if code != 0:
            raise SystemExit(code)
        return code

    def checkpoint(self) -> Any:
        """Have the run saved and stopped; what is queued again."""
        from submitit.helpers import DelayedSubmission

        # This is called from a signal's handler in the midst of `wait`, which holds the lock of the process.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self._process is not None:
                os.kill(self._process.pid, signal.SIGTERM)
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(TrainingJob(self.words, folder=Path(self.folder)))


@contextlib.contextmanager
def _ignored(number: int | None) -> Iterator[None]:
    """Processes that are started inside the block ignore a signal, which is meant for this one."""
    if number is None:
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def _meeting_place() -> dict[str, str]:
    """Where the processes of several machines meet: the first machine of the job, at a port of the job's own."""
    if int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) == 1 or "MASTER_ADDR" in os.environ:
        return {}
    import submitit

    first = submitit.JobEnvironment().hostnames[0]
    port = _PORT_FROM + int(os.environ["SLURM_JOB_ID"]) % _NUM_PORTS
    return {"MASTER_ADDR": first, "MASTER_PORT": os.environ.get("MASTER_PORT", str(port))}


def submit(words: Sequence[str], *, out: Path, launcher: str, job: SlurmSettings, run: RunSettings) -> Any:
    """Hand `vitrail WORDS` to Slurm (or, as `local`, to a process of this machine); submitit's job."""
    try:
        import submitit
    except ImportError:
        raise ValueError("launcher=slurm needs submitit: pip install 'vitrail[slurm]'") from None
    logs = out.with_name(f"{out.name}.jobs") if not out.exists() else out / "jobs"
    executor = _make_executor(submitit, logs, launcher=launcher, job=job)
    gpus = job.gpus if job.gpus is not None else (0 if run.device == "cpu" else run.devices)
    parameters: dict[str, Any] = {
        "name": job.name,
        "timeout_min": job.minutes,
        "nodes": run.nodes,
        "tasks_per_node": 1,  # which starts its machine's processes itself
    }
    if job.cpus is not None:
        parameters["cpus_per_task"] = job.cpus
    if launcher == "slurm":
        choices = {"partition": job.partition, "account": job.account, "qos": job.qos, "constraint": job.constraint}
        parameters |= {f"slurm_{key}": value for key, value in choices.items() if value is not None}
        parameters |= {"slurm_mem": job.memory} if job.memory is not None else {}
        parameters |= {
            "slurm_signal_delay_s": job.save_seconds,
            "slurm_srun_args": ["--kill-on-bad-exit=1"],
            "slurm_additional_parameters": {"requeue": True},
        }
    if gpus:
        parameters["gpus_per_node"] = gpus
    executor.update_parameters(**parameters)
    return executor.submit(TrainingJob(words, folder=Path.cwd()))


def _make_executor(submitit: Any, logs: Path, *, launcher: str, job: SlurmSettings) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # submitit's, about clusters that are not there
            return submitit.AutoExecutor(folder=str(logs / "%j"), cluster=launcher, slurm_max_num_timeout=job.requeues)
    except RuntimeError:
        raise ValueError(
            "launcher=slurm needs a machine that jobs are submitted from, and there is no srun here: log in to one"
        ) from None
    except OSError as error:
        raise ValueError(f"{logs} can't be written ({error.strerror or error})") from None
