"""Faults of what a run stands on: a disk, a clock, shards and their server."""

import os
import subprocess
import time
from collections.abc import Callable

import iecl
from benchmarks.faults.runs import MOMENT, Tally, is_clean, losses_of, tally, trial
from benchmarks.shard_server import served

_CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (where) *where = found.tv_sec;
    return found.tv_sec;
}
"""
"""A machine's clock that says something else for one program."""


def read_only() -> Tally:
    """A disk that can no longer be written to, from one moment on or from the start."""
    results = []
    with trial() as here:
        small = here.folder / "disk"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(small)], check=False)
        if mounted.returncode:
            return 0, 0, 0  # needs the right to mount
        try:
            here.out = small / "run"
            process = here.start(here.words(training__checkpoint_steps=3, epochs=40))
            here.wait_for_step(3, process)
            # A disk on which a file is open for writing cannot become read-only; this way to it can.
            subprocess.run(["mount", "-o", "bind", str(small), str(small)], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", str(small)], check=True)
            _, err = process.communicate(timeout=4 * MOMENT)
            results.append(here.is_kept() and process.returncode == 1 and is_clean(err))
            done = here.done(here.words("--overwrite", epochs=2))
            results.append(done.returncode in (1, 2) and is_clean(done.stderr) and here.is_kept())
            subprocess.run(["umount", str(small)], check=True)
            done = here.done(["pretrain", "--out", str(here.out), "--resume"])
            results.append(done.returncode == 0)
        finally:
            for _ in range(2):
                subprocess.run(["umount", "-l", str(small)], stderr=subprocess.DEVNULL, check=False)
    return tally(results)


def clock_jumps() -> Tally:
    """The clock of the machine jumps an hour back, ten years ahead, and to and fro, alone and with two ranks."""
    results = []
    with trial() as here:
        shim, said = here.folder / "clock.so", here.folder / "offset"
        (here.folder / "clock.c").write_text(_CLOCK)
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, here.folder / "clock.c"], check=True)
        except (OSError, subprocess.CalledProcessError):
            return 0, 0, 0  # needs a C compiler
        for devices in ("1", "2"):
            said.write_text("0")
            here.out = here.folder / f"whole-{devices}"
            assert here.done(here.words("--devices", devices, epochs=30)).returncode == 0
            losses = losses_of(here.out)
            for name, jumps in {"back": [-3600], "ahead": [315360000], "to and fro": [86400, -86400, 60, 0]}.items():
                said.write_text("0")
                here.out = here.folder / f"{name}-{devices}"
                there = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET": str(said)}
                process = here.start(here.words("--devices", devices, epochs=30), environment=there)
                for number, jump in enumerate(jumps):
                    here.wait_for_step(5 + 5 * number, process)
                    said.write_text(str(jump))
                _, err = process.communicate(timeout=4 * MOMENT)
                results.append(process.returncode == 0 and is_clean(err) and losses_of(here.out) == losses)
    return tally(results)


def damaged_shard() -> Tally:
    """A shard that is cut short, or a server of shards that is gone, while a run reads: named, mended, gone on from."""
    results = []
    with trial() as here:
        folder = here.folder / "shards"
        iecl.pack(here.images, folder, shards=True, shard_megabytes=0.04, sets=["data.num_workers=0"])
        shards = sorted(folder.glob("*.tar"))
        whole = shards[1].read_bytes()
        more = {"data__cache_megabytes": 0, "training__checkpoint_steps": 3}
        here.data = folder
        here.out = here.folder / "whole"
        assert here.done(here.words(epochs=60, **more)).returncode == 0
        losses = losses_of(here.out)
        for workers in (0, 2):
            here.out = here.folder / f"cut-{workers}"
            process = here.start(here.words(epochs=60, **more | {"data__num_workers": workers}))
            here.wait_for_step(5, process)
            os.truncate(shards[1], len(whole) // 2)
            _, err = process.communicate(timeout=MOMENT)
            named = f"{shards[1]} cannot be used: it is cut short" in err
            results.append(process.returncode == 1 and named and is_clean(err) and here.is_kept())
            resume = ["pretrain", "--out", str(here.out), "--resume"]
            if workers:  # without the shard
                done = here.done([*resume, "--set", "data.bad_shards=skip"])
                results.append(done.returncode == 0 and len(losses_of(here.out)) == len(losses))
            shards[1].write_bytes(whole)
            if not workers:
                results.append(here.done(resume).returncode == 0 and losses_of(here.out) == losses)
        here.out = here.folder / "skipped"
        skip = {"data__bad_shards": "skip"}
        process = here.start(here.words(epochs=60, **more | skip))
        here.wait_for_step(5, process)
        os.truncate(shards[1], len(whole) // 2)
        _, err = process.communicate(timeout=MOMENT)
        listed = (here.out / "skipped.txt").read_text().count("it is cut short")
        results.append(process.returncode == 0 and is_clean(err) and listed > 0)
        shards[1].write_bytes(whole)
        gone = [0.0]
        with served(folder, refuses=lambda: time.monotonic() < gone[0]) as url:
            for seconds in (0.5, 1000):
                here.out, gone[0] = here.folder / f"gone-{seconds}", 0.0
                here.data = url
                process = here.start(here.words(epochs=60, **more))
                here.wait_for_step(5, process)
                gone[0] = time.monotonic() + seconds
                _, err = process.communicate(timeout=2 * MOMENT)
                ended = seconds < 1 or (process.returncode == 1 and "503" in err and here.is_kept())
                gone[0] = 0.0
                if process.returncode:
                    process = here.start(["pretrain", "--out", str(here.out), "--resume"])
                    process.communicate(timeout=4 * MOMENT)
                results.append(ended and is_clean(err) and process.returncode == 0 and losses_of(here.out) == losses)
    return tally(results)


FAULTS: dict[str, Callable[[], Tally]] = {
    "disk read-only": read_only,
    "clock jumps": clock_jumps,
    "shard cut short, server of shards gone": damaged_shard,
}
