"""Faults around whole runs: full disks, vanished folders, signals, second writers, launchers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from iecl.weights.file import load_weights

Tally = tuple[int, int, int]
"""Tried, survived, lost."""
SMALL = {
    "data.image_size": 16, "training.loggers": "[]", "training.log_steps": 1, "training.meter_steps": 5,
    "data.num_workers": 0, "training.precision": "32-true", "method.hidden_dim": 16, "method.out_dim": 8,
}  # fmt: skip
COMMAND = [sys.executable, "-m", "iecl"]
MOMENT = 60.0 * max(1.0, os.getloadavg()[1] / (os.cpu_count() or 1))
"""Seconds after which a run that does not come to what is waited for counts as lost; more on a busy machine."""


def make_images(folder: Path, count: int = 64) -> Path:
    """Noise in two class folders."""
    noise = np.random.default_rng(0)
    for number in range(count):
        own = folder / "images" / ("a", "b")[number % 2]
        own.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(own / f"{number}.png")
    return folder / "images"


class _Polled(Protocol):
    """A process, or several, of which one may ask whether it has ended."""

    def poll(self) -> int | None:
        """Its exit code; None: it is there."""


class Trial:
    """A folder with images, and runs beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.images = folder, make_images(folder)
        self.data: object = self.images
        self.out = folder / "run"

    def words(self, *more: str, epochs: int = 400, **sets: object) -> list[str]:
        """The command of a run that takes about a minute, if nothing ends it."""
        sets = SMALL | {name.replace("__", "."): value for name, value in sets.items()}
        assigned = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
        flags = ["--epochs", str(epochs), "--batch-size", "16", "--backbone", "resnet10-w16", "--out", str(self.out)]
        return ["pretrain", "--data", str(self.data), *flags, *assigned, *more]

    def start(self, words: list[str], **more: object) -> "subprocess.Popen[str]":
        """The command in a process group of its own."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | more.pop("environment", {})  # type: ignore[arg-type]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        return subprocess.Popen([*COMMAND, *words], env=environment, **pipes, **more)  # type: ignore[call-overload, no-any-return]

    def done(self, words: list[str], **more: object) -> "subprocess.CompletedProcess[str]":
        """The command, to its end."""
        process = self.start(words, **more)
        try:
            out, err = process.communicate(timeout=4 * MOMENT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def steps(self) -> int:
        """How far the run has come."""
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
            return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)
        except (OSError, ValueError):
            return 0

    def wait_for(self, is_so: Callable[[], bool], process: "_Polled") -> bool:
        """Wait until something is so; not if the process ends before."""
        end = time.monotonic() + MOMENT
        while not is_so():
            if process.poll() is not None or time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def wait_for_step(self, step: int, process: "subprocess.Popen[str]") -> bool:
        """Wait until the run has a checkpoint and has taken this step."""
        return self.wait_for(lambda: (self.out / "checkpoints/last.ckpt").exists() and self.steps() >= step, process)

    def wait_for_steps(self, count: int, process: "_Polled") -> bool:
        """Wait until the run has come this much further."""
        goal = self.steps() + count
        return self.wait_for(lambda: self.steps() >= goal, process)

    def is_kept(self) -> bool:
        """Whether everything that a run with a checkpoint has is there."""
        names = ("settings.toml", "metrics.jsonl", "log.txt", "checkpoints/last.ckpt", "history.jsonl")
        return all((self.out / name).is_file() for name in names)


@contextmanager
def trial() -> Iterator[Trial]:
    """A trial in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Trial(Path(folder))


def is_clean(text: str) -> bool:
    """Whether a message is for people."""
    return not any(word in text for word in ("Traceback", "resource_tracker", "frame #"))


def tally(results: list[bool]) -> Tally:
    """Counts of what was tried; which of them were lost is said at once."""
    for number, is_survived in enumerate(results):
        if not is_survived:
            print(f"lost: number {number + 1} of {len(results)}", flush=True)
    return len(results), sum(results), len(results) - sum(results)


def full_disk() -> Tally:
    """A disk that is full at a checkpoint or at a line of metrics: what is there stays, and with room it goes on."""
    results = []
    for checkpoint_steps, left in ((3, 2**20), (3, 0), (1000, 0)):
        with trial() as here:
            small = here.folder / "disk"
            small.mkdir()
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(small)], check=False)
            if mounted.returncode:
                return 0, 0, 0  # needs the right to mount
            try:
                here.out = small / "run"
                process = here.start(here.words(training__checkpoint_steps=checkpoint_steps, epochs=40))
                here.wait_for_step(3, process)
                with suppress(OSError):
                    (small / "filler").write_bytes(bytes(shutil.disk_usage(small).free - left))
                _, err = process.communicate(timeout=MOMENT)
                kept = here.is_kept() and process.returncode == 1 and is_clean(err)
                (small / "filler").unlink()
                done = here.done(["pretrain", "--out", str(here.out), "--resume"])
                results.append(kept and done.returncode == 0)
            finally:
                subprocess.run(["umount", "-l", str(small)], check=False)
    return tally(results)


def killed_worker() -> Tally:
    """A process that decodes is killed with -9, alone and with two ranks: one line, and it goes on from there."""
    results = []
    for devices in ("1", "2"):
        with trial() as here:
            process = here.start(here.words("--devices", devices, data__cache_megabytes=0, data__num_workers=2))
            here.wait_for_step(5, process)
            parent = process.pid if devices == "1" else _ranks(process.pid)[1]
            children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
            workers = [
                child for child in children if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()
            ]
            os.kill(workers[0], signal.SIGKILL)
            _, err = process.communicate(timeout=MOMENT)
            named = "a process that decodes images was ended by SIGKILL" in err
            results.append(process.returncode == 1 and named and is_clean(err) and here.is_kept())
            resumed = here.start(["pretrain", "--out", str(here.out), "--resume"])
            results.append(here.wait_for_steps(2, resumed) and not _left(process.pid))
            os.killpg(resumed.pid, signal.SIGKILL)
            resumed.communicate()
    return tally(results)


def vanished_data() -> Tally:
    """The folder of images is renamed away for four seconds, or for good, with nothing kept in memory."""
    results = []
    for is_back in (True, False):
        with trial() as here:
            process = here.start(here.words(data__cache_megabytes=0, epochs=100 if is_back else 4000))
            here.wait_for_step(8, process)
            away = here.images.with_name("away")
            here.images.rename(away)
            if is_back:
                time.sleep(4)
                away.rename(here.images)
            _, err = process.communicate(timeout=4 * MOMENT)
            good = process.returncode == 0 if is_back else process.returncode == 1
            results.append(good and here.is_kept() and is_clean(err))
    return tally(results)


def vanished_run() -> Tally:
    """The run directory itself is removed while a run writes to it."""
    with trial() as here:
        process = here.start(here.words())
        here.wait_for_step(5, process)
        shutil.rmtree(here.out, ignore_errors=True)
        shutil.rmtree(here.out, ignore_errors=True)
        _, err = process.communicate(timeout=MOMENT)
        return tally([process.returncode == 1 and is_clean(err) and "is gone" in err])


def unwritable_weights() -> Tally:
    """Weights that cannot be written when training is over."""
    with trial() as here:
        process = here.start(here.words(epochs=20))
        here.wait_for_step(3, process)
        (here.out / "weights.safetensors" / "in the way").mkdir(parents=True)
        _, err = process.communicate(timeout=MOMENT)
        kept = here.is_kept() and process.returncode == 1 and is_clean(err)
        shutil.rmtree(here.out / "weights.safetensors")
        done = here.done(["pretrain", "--out", str(here.out), "--resume"])
        return tally([kept and done.returncode == 0 and (here.out / "weights.safetensors").is_file()])


def failed_overwrite() -> Tally:
    """`--overwrite` with a start that fails: the old run is there as it was."""
    results = []
    with trial() as here:
        assert here.done(here.words(epochs=2)).returncode == 0
        before = _content(here.out)
        for more in (
            ["--batch-size", "1000"],
            ["--accelerator", "cuda"],
            ["--strategy", "magic"],
            ["--data", "nowhere"],
            ["--set", "optimizer.lr=1e30", "--set", "optimizer.name=sgd"],
        ):
            done = here.done([*here.words(epochs=2), "--overwrite", *more])
            results.append(done.returncode in (1, 2) and is_clean(done.stderr) and _content(here.out) == before)
        for wait in (0.5, 2, 3, 3.5, 4, 4.5):
            process = here.start([*here.words(), "--overwrite"])
            time.sleep(wait)
            was_new = _has_new_checkpoint(here.out, before)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if was_new or _has_new_checkpoint(here.out, before):
                break  # from here on the new run is the run
            shown = here.done(["describe", str(here.out)])
            results.append(shown.returncode == 0 and _content(here.out) == before)
    return tally(results)


def _content(run: Path) -> dict[str, bytes]:
    hidden = (".lock", "failed-")
    files = [path for path in run.rglob("*") if path.is_file()]
    named = {str(path.relative_to(run)): path.read_bytes() for path in files}
    return {name: raw for name, raw in named.items() if not name.startswith(hidden)}


def _has_new_checkpoint(run: Path, before: dict[str, bytes]) -> bool:
    last = run / "checkpoints/last.ckpt"
    return last.exists() and last.read_bytes() != before["checkpoints/last.ckpt"]


def second_writer() -> Tally:
    """A start, a resume and an overwrite of a run that is being written; two starts at the same instant."""
    results = []
    with trial() as here:
        process = here.start(here.words())
        here.wait_for_step(3, process)
        for words in (here.words(), ["pretrain", "--out", str(here.out), "--resume"], here.words("--overwrite")):
            done = here.done(words)
            refused = done.returncode == 2 and is_clean(done.stderr)
            named = str(process.pid) in done.stderr or "already holds a run" in done.stderr
            results.append(refused and named and process.poll() is None)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        resumed = here.start(["pretrain", "--out", str(here.out), "--resume"])  # at once: no lock is left behind
        results.append(here.wait_for_steps(1, resumed))
        os.killpg(resumed.pid, signal.SIGKILL)
        resumed.communicate()
    for _ in range(3):
        with trial() as here:
            both = [here.start(here.words(epochs=3)) for _ in range(2)]
            ends = [(process.communicate(timeout=MOMENT), process.returncode) for process in both]
            rows = (here.out / "metrics.jsonl").read_text().splitlines()
            steps = [json.loads(row)["step"] for row in rows]
            codes = sorted(code for _, code in ends)
            results.append(codes == [0, 2] and steps == sorted(steps) and all(is_clean(err) for (_, err), _ in ends))
    return tally(results)


def signals() -> Tally:
    """SIGINT and SIGTERM to parent, one rank, and the whole group, with decoding workers, alone and with two ranks."""
    results = []
    for devices in (1, 2):
        for number in (signal.SIGINT, signal.SIGTERM):
            for whom in ("parent", "group", *(["rank"] if devices == 2 else [])):
                with trial() as here:
                    sets = {"data__cache_megabytes": 0, "data__num_workers": 2}
                    process = here.start(here.words("--devices", str(devices), **sets))
                    here.wait_for_step(5, process)
                    _send(process, number, whom)
                    _, err = process.communicate(timeout=MOMENT)
                    saved = "all of it saved" in err and here.is_kept() and not _left(process.pid)
                    results.append(process.returncode == 128 + number and is_clean(err) and saved)
    return tally(results)


def _send(process: "subprocess.Popen[str]", number: int, whom: str) -> None:
    if whom == "group":
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid if whom == "parent" else _ranks(process.pid)[1], number)


def _ranks(parent: int) -> list[int]:
    """The training processes of a run, in the order of their start."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _left(session: int) -> list[int]:
    """Processes of a session that are still there a moment after its leader has gone."""
    end = time.monotonic() + 10
    while True:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(stat.parent.name))
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


def killed_rank() -> Tally:
    """One of two ranks, and their parent, are killed with -9: one line, in the log too, and it goes on from there."""
    results = []
    for whom in (0, 1, "parent"):
        with trial() as here:
            process = here.start(here.words("--devices", "2"))
            here.wait_for_step(5, process)
            os.kill(process.pid if whom == "parent" else _ranks(process.pid)[int(whom)], signal.SIGKILL)
            _, err = process.communicate(timeout=MOMENT)
            if whom != "parent":
                named = f"process {whom} was ended by SIGKILL" in err
                logged = "was ended by SIGKILL" in (here.out / "log.txt").read_text()
                results.append(process.returncode == 1 and is_clean(err) and named and logged and here.is_kept())
            resumed = here.start(["pretrain", "--out", str(here.out), "--resume"])
            results.append(here.wait_for_steps(2, resumed) and not _left(process.pid))
            os.killpg(resumed.pid, signal.SIGKILL)
            resumed.communicate()
    return tally(results)


def launchers() -> Tally:
    """Two processes by torchrun, by SLURM's variables, and two machines by hand give the run of `--devices 2`."""
    results = []
    with trial() as here:
        assert here.done(here.words("--devices", "2", epochs=3)).returncode == 0
        expected = losses_of(here.out)
        here.out = here.folder / "torchrun"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "iecl"]
        run = subprocess.run([*torchrun, *here.words(epochs=3)], capture_output=True, text=True, check=False)
        results.append(run.returncode == 0 and losses_of(here.out) == expected)
        wrong = [*torchrun, *here.words("--devices", "4", epochs=3)]
        here.out = here.folder / "wrong"
        run = subprocess.run(wrong, capture_output=True, text=True, check=False)
        results.append(run.returncode != 0 and "has started 2 processes" in run.stderr and not here.out.exists())
        slurm = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": str(os.getpid())}
        by_hand = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617"}
        for name, more, each in (
            ("slurm", [], lambda n: slurm | {"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)}),
            ("nodes", ["--nodes", "2"], lambda n: by_hand | {"NODE_RANK": str(n)}),
        ):
            here.out = here.folder / name
            both = [here.start(here.words(*more, epochs=3), environment=each(number)) for number in range(2)]
            ends = [(process.communicate(timeout=2 * MOMENT), process.returncode) for process in both]
            good = all(code == 0 and is_clean(err) for (_, err), code in ends)
            results.append(good and losses_of(here.out) == expected)
        for strategy in ("ddp_find_unused_parameters_true", "dp", "ddp_spawn", "deepspeed"):
            here.out = here.folder / strategy
            done = here.done(here.words("--devices", "2", "--strategy", strategy))
            results.append(done.returncode == 2 and is_clean(done.stderr) and strategy in done.stderr)
    return tally(results)


def digest_of(run: Path) -> str:
    """Covers every tensor and every entry of the metadata, whose order in the file is nobody's choice."""
    return load_weights(run / "weights.safetensors")[1]["digest"]


def losses_of(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


FAULTS: dict[str, Callable[[], Tally]] = {
    "disk full": full_disk,
    "data folder gone, for seconds or for good": vanished_data,
    "run directory gone": vanished_run,
    "weights cannot be written": unwritable_weights,
    "overwrite that fails or is killed": failed_overwrite,
    "second writer": second_writer,
    "signals to parent, rank, group": signals,
    "rank killed": killed_rank,
    "worker killed": killed_worker,
    "torchrun, SLURM, two machines, other strategies": launchers,
}
