"""Starting the processes that train together, or go over data together, on this machine, and ending them together."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from vitrail.settings.running import RunSettings

USER_ERROR = 2  # the exit code of a process that has said in one line what is wrong
LOST_OTHERS = 75  # of a process that ends because another one did
PREEMPTED = 85  # of a run that SIGTERM has stopped and that is saved: start it again (HTCondor's code for that too)
_INTERRUPTED = 130
_STOPPED = (_INTERRUPTED, PREEMPTED)  # codes of a process that has saved
_SIGNAL_BASE = 128  # what shells add to the signal that ended a process
_GRACE_SECONDS = 4.0  # for the main process to end by itself when another has
_SAVING_SECONDS = 120.0  # for all to save and end when one of them was told to stop
_POLL_SECONDS = 0.05
_SECONDS_OF_MAIN = 3.0  # for the main process to tell an error, and torchrun to end the others
_LAUNCHER = "VITRAIL_LAUNCHER"  # the variable that holds its process's number
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def is_launched() -> bool:
    """Whether this process was started by a launcher."""
    return "RANK" in os.environ


def stop_with_launcher() -> None:
    """Have Linux send this process SIGTERM, at which it saves and stops, when the launcher is gone, however it went."""
    launcher = os.environ.get(_LAUNCHER)
    if launcher is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(launcher):
        raise SystemExit(LOST_OTHERS)


def let_main_tell() -> None:
    """Give the main process time to tell an error that all have: torchrun then ends this process, before it does too.

    Our own launcher listens to other processes only where they alone have failed.
    """
    if os.environ.get("RANK", "0") != "0" and _LAUNCHER not in os.environ:
        time.sleep(_SECONDS_OF_MAIN)


def launch(
    words: Sequence[str], settings: RunSettings, *, reads_input: bool = False, own_codes: Sequence[int] = ()
) -> int:
    """Run `vitrail WORDS` in as many processes as the settings ask for on this machine; the job's exit code.

    Over several machines the same command is started on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set, as
    Slurm scripts do. Where Slurm has started a task for each process, this one becomes its task's. With `reads_input`
    the main process has this one's stdin. Where it ends with one of `own_codes`, nothing has to be said.
    """
    command = [sys.executable, "-m", "vitrail", *words]
    place = find_place(settings, os.environ)
    if place.local_rank is not None:
        os.execve(command[0], command, place.environment(place.local_rank))
    return run_together(command, place, reads_input=reads_input, own_codes=own_codes)


def run_together(
    command: Sequence[str], place: "MachinePlace", *, reads_input: bool = False, own_codes: Sequence[int] = ()
) -> int:
    """Run a command in every process of this machine; the job's exit code.

    Only the main process speaks. Another is heard when it is the one that failed.
    """
    with contextlib.ExitStack() as stack:
        processes = [
            _start(command, place, local_rank, stack, reads_input=reads_input) for local_rank in range(place.num_local)
        ]
        job = _Job(processes, own_codes=own_codes)
        stack.enter_context(job.forwarding_signals())
        return job.wait()


@dataclass(frozen=True, kw_only=True)
class MachinePlace:
    """Where the processes of this machine stand among all."""

    address: str  # of the main process
    port: str
    first_rank: int  # of this machine
    num_ranks: int  # of the whole job
    num_local: int
    local_rank: int | None = None  # of this very process, where something else has started all of them

    def environment(self, local_rank: int) -> dict[str, str]:
        """The environment of a process, with what torch.distributed reads."""
        environment = {
            **os.environ,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            "RANK": str(self.first_rank + local_rank),
            "WORLD_SIZE": str(self.num_ranks),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.num_local),
            **_closing_the_working_directory(),
        }
        # Processes that each take all cores get in each other's way.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.num_local)))
        return environment


def find_place(settings: RunSettings, environment: Mapping[str, str]) -> MachinePlace:
    """Read from the environment which machine of the job this is; Slurm's names are understood too."""
    devices, nodes = settings.devices, settings.nodes
    num_ranks = devices * nodes
    is_task = devices > 1 and environment.get("SLURM_STEP_NUM_TASKS") == str(num_ranks)
    if nodes == 1 and not is_task:
        return MachinePlace(
            address="127.0.0.1", port=str(_free_port()), first_rank=0, num_ranks=devices, num_local=devices
        )
    names = {name: environment.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")}
    names["NODE_RANK"] = names["NODE_RANK"] or environment.get("SLURM_NODEID") or ("0" if nodes == 1 else None)
    missing = [name for name, value in names.items() if not value]
    if missing:
        raise ValueError(
            f"devices={devices} nodes={nodes} needs {', '.join(missing)} in the environment of every machine "
            f"(this one is {socket.gethostname()}): see docs/distributed.md"
        )
    node = str(names["NODE_RANK"])
    if not node.isdigit() or int(node) >= nodes:
        raise ValueError(f"NODE_RANK is {node}: with nodes={nodes} it must be a whole number from 0 to {nodes - 1}")
    return MachinePlace(
        address=str(names["MASTER_ADDR"]),
        port=str(names["MASTER_PORT"]),
        first_rank=int(node) * devices,
        num_ranks=num_ranks,
        num_local=devices,
        local_rank=int(environment["SLURM_LOCALID"]) if is_task else None,
    )


@dataclass(frozen=True, eq=False)
class _Process:
    rank: int
    popen: subprocess.Popen[bytes]
    said: IO[bytes] | None  # what a process other than the main one has written

    @property
    def code(self) -> int | None:
        """The exit code of the process; minus the signal that ended it."""
        return self.popen.poll()

    def describe(self) -> str:
        """How the process ended, and why if it has said so."""
        code = self.code or 0
        if code in _STOPPED:
            return f"rank {self.rank} was interrupted, and not the others"
        if code < 0:
            return f"rank {self.rank} was ended by {signal.Signals(-code).name}"
        words = self.last_line if code in (USER_ERROR, LOST_OTHERS) else ""
        return f"rank {self.rank}: {words}" if words else f"rank {self.rank} ended with exit code {code}"

    @property
    def last_line(self) -> str:
        lines = self.read().strip().splitlines()
        return lines[-1].removeprefix("vitrail: error: ") if lines else ""

    def read(self) -> str:
        """All that the process has written."""
        if self.said is None:
            return ""
        self.said.seek(0)
        return self.said.read().decode(errors="replace")


def _start(
    command: Sequence[str], place: MachinePlace, local_rank: int, stack: contextlib.ExitStack, *, reads_input: bool
) -> _Process:
    """A process in a session of its own, so that Ctrl-C reaches it through us, once."""
    rank = place.first_rank + local_rank
    said = stack.enter_context(tempfile.TemporaryFile()) if rank > 0 else None  # noqa: SIM115 the stack closes it
    popen = subprocess.Popen(
        command,
        env={**place.environment(local_rank), _LAUNCHER: str(os.getpid())},
        stdin=None if reads_input and rank == 0 else subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        start_new_session=True,
    )
    stack.callback(_kill, popen)
    return _Process(rank, popen, said)


def _kill(popen: subprocess.Popen[bytes]) -> None:
    """End a process and its data workers, which share its session and may outlive one that was killed."""
    code = popen.poll()
    if code is None or code < 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()


class _Job:
    """The processes of this machine, of which none outlives the failure of another."""

    def __init__(self, processes: Sequence[_Process], *, own_codes: Sequence[int] = ()) -> None:
        self.processes, self.own_codes = processes, own_codes
        self.main = next((process for process in processes if process.rank == 0), None)
        self.num_signals = 0

    @contextlib.contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM go to all processes, which save and stop; a second Ctrl-C ends them at once."""
        before = {number: signal.signal(number, self._forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, frame: object) -> None:
        if number == signal.SIGINT or self.num_signals == 0:
            self.num_signals += 1
        for process in self.processes:
            if process.popen.returncode is None:
                process.popen.send_signal(number)

    def wait(self) -> int:
        """Wait until all have ended, or one has failed; the job's exit code."""
        while self._running():
            if self.num_signals > 1:
                return _INTERRUPTED
            if self._failed():
                self._let_others_end()
                break
            time.sleep(_POLL_SECONDS)
        if self._failed() and not self._stopped_together():
            return self._blame()
        codes = {process.code for process in self.processes}
        if PREEMPTED in codes:
            return PREEMPTED
        return _INTERRUPTED if codes != {0} else 0

    def _running(self) -> list[_Process]:
        return [process for process in self.processes if process.code is None]

    def _was_stopped(self, process: _Process) -> bool:
        """Whether a process ended because it was asked to; one that could not save yet ends by the signal."""
        return self.num_signals > 0 and process.code in (*_STOPPED, -signal.SIGINT, -signal.SIGTERM, LOST_OTHERS)

    def _stopped_together(self) -> bool:
        """Whether all have saved and stopped: they do when one of them, here or on another machine, was told to."""
        return all(process.code in _STOPPED for process in self.processes)

    def _failed(self) -> list[_Process]:
        """The processes that failed, first those that are not a consequence of others."""
        failed = [p for p in self.processes if p.code not in (None, 0) and not self._was_stopped(p)]
        return sorted(failed, key=lambda process: process.code == LOST_OTHERS)

    def _let_others_end(self) -> None:
        """Give the main process time to say the same error itself, or any process to show what the cause was.

        Where one was told to stop, all save first, which takes longer.
        """
        began = time.monotonic()
        while self._running() and self.num_signals < 2:
            failed = self._failed()
            may_be_saving = all(process.code in _STOPPED for process in failed)
            if time.monotonic() - began > (_SAVING_SECONDS if may_be_saving else _GRACE_SECONDS):
                return
            is_cause_known = any(process.code != LOST_OTHERS for process in failed)
            if is_cause_known and not may_be_saving and (self.main is None or self.main.code is not None):
                return
            time.sleep(_POLL_SECONDS)

    def _blame(self) -> int:
        """Say which process failed and how, unless the main one has said so; the exit code."""
        cause = self._failed()[0]
        code = cause.code or 0
        if self.main is not None and self.main.code in self.own_codes:
            return self.main.code or 0
        if self.main is None or self.main.code != USER_ERROR:
            if code not in (USER_ERROR, LOST_OTHERS):
                sys.stderr.write(cause.read())
            advice = "" if code == USER_ERROR else "; run the same command to go on"
            print(f"vitrail: error: {cause.describe()}{advice}", file=sys.stderr)
        return code if code > 0 else _SIGNAL_BASE - code


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _closing_the_working_directory() -> dict[str, str]:
    """What keeps `python -m` from importing files of the working directory, where this process does not either."""
    is_open = "" in sys.path or os.getcwd() in sys.path
    return {} if is_open else {"PYTHONSAFEPATH": "1"}
