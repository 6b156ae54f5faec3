"""How long does a report of many images take, how large is it, and does its map follow the pointer?

    python -m benchmarks.report --data FOLDER     # photographs; they are shown again and again until there are enough

Features are drawn at random around one center for each of ten classes: making real ones is the work of `iecl embed`
and no part of this. Everything after them is measured: clusters, map, thumbnails, neighbors, confusion, the file. Then
a browser opens the file and is pointed at, dragged and drawn around in, one step in each frame: milliseconds of the
processor for a frame, and from frame to frame the median and what 95 % stay below. `still` is the same machine with
nothing to do. Seconds of the processor, on one thread, are what a machine takes that does nothing else.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.browser import PROGRAM, Browser
from benchmarks.faults.readers import make_run
from benchmarks.result import write
from iecl.data.batch import Pixels
from iecl.data.factory import open_source
from iecl.data.settings import DataSettings
from iecl.data.source import Numbers, Source
from iecl.evaluation.model import load_model
from iecl.reporting.gallery import Gallery
from iecl.reporting.making import describe
from iecl.reporting.page import written
from iecl.reporting.sample import Sampled
from iecl.reporting.seeing import look_at_sample
from iecl.reporting.sight_settings import SightSettings

COUNTS, WIDTH, CLASSES = (1_000, 10_000, 100_000), 512, 10
MOST_MEGABYTES, MOST_SECONDS = 10, 60
PREPARED = """(() => {
  const base = document.querySelector("canvas.base"), box = base.getBoundingClientRect();
  base.setPointerCapture = () => {};
  window.send = (kind, x, y, more) => base.dispatchEvent(new PointerEvent(kind, {
    clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerId: 1, ...more }));
  window.times = [];
  window.frame = () => new Promise((done) => requestAnimationFrame((now) => {
    window.times.push(now);
    setTimeout(done);
  }));
  window.around = (i, n) => [
    box.width * (0.5 + 0.3 * Math.cos(6.28 * i / n)), box.height * (0.5 + 0.3 * Math.sin(6.28 * i / n))];
})()"""
TOUCHES = {
    "still": "for (let i = 0; i < 60; i++) await frame();",
    "hover": "for (let i = 0; i < 60; i++) { send('pointermove', ...around(i, 60)); await frame(); }",
    "pan": "send('pointerdown', 300, 300); for (let i = 0; i < 60; i++) { "
    "send('pointermove', 300 + 3 * i, 300 + i); await frame(); } send('pointerup', 480, 360); await frame();",
    "lasso": "send('pointerdown', ...around(0, 60), { shiftKey: true }); for (let i = 1; i < 60; i++) { "
    "send('pointermove', ...around(i, 60), { shiftKey: true }); await frame(); }",
    "list": "send('pointerup', ...around(0, 60), { shiftKey: true }); await frame();",
}
"""What a hand does, one step in each frame: nothing, pointing, dragging the map, drawing a lasso, letting go of it."""


@dataclass(frozen=True)
class Repeated:
    """Images of a source, again and again, each time under another name."""

    source: Source
    count: int
    is_decoded = False
    classes = tuple(f"class {number}" for number in range(CLASSES))

    @property
    def name(self) -> str:
        """Whose images these are."""
        return self.source.name

    @property
    def labels(self) -> Numbers:
        """One class after the other."""
        return np.arange(self.count) % CLASSES

    def __len__(self) -> int:
        return self.count

    def read(self, index: Numbers) -> Pixels:
        """The images with these numbers."""
        return self.source.read(index % len(self.source))

    def path(self, index: int) -> str:
        """A name as cameras and scrapers give them."""
        return f"/data/photographs/part-{index % 97:02d}/{index:06d}_{(index * 2654435761) % 2**32:08x}.jpg"


def sample_of(data: str, run: Path, count: int) -> Sampled:
    """So many images with made features."""
    source = Repeated(open_source(DataSettings(name=data, image_size=64, cache_megabytes=0), "pretrain"), count)
    drawn = torch.Generator().manual_seed(0)
    labels = source.labels
    centers = torch.randn(CLASSES, WIDTH, generator=drawn)
    features = centers[torch.from_numpy(labels)] + 1.5 * torch.randn(count, WIDTH, generator=drawn)
    paths = [source.path(i) for i in range(count)]
    order = np.array(sorted(range(count), key=paths.__getitem__))
    features, labels, paths = features[torch.from_numpy(order)], labels[order], [paths[i] for i in order]
    model, split = load_model(run), np.zeros(count, np.int64)
    object.__setattr__(model.info, "image_size", 64)
    return Sampled(model, (source,), ("all",), features, labels, split, order, paths, count, source.classes, 0, 64)


def row_of(data: str, run: Path, count: int, folder: Path) -> dict[str, Any]:
    sample = sample_of(data, run, count)
    wall, own = time.monotonic(), time.process_time()
    gallery = Gallery()
    found = look_at_sample(sample, SightSettings(None, count, ("pca",), "", "final", "cpu"), gallery, [])
    found |= {"shown": count, "total": count, "checkpoint": "final", "notes": [], "gallery": gallery.packed()}
    written(describe([run]) | {"sights": found}, folder / f"{count}.html")
    row = {
        "arm": f"{count:,} images",
        "images": count,
        "seconds": round(time.monotonic() - wall, 2),
        "processor_seconds": round(time.process_time() - own, 2),
        "megabytes": round((folder / f"{count}.html").stat().st_size / 1e6, 2),
    }
    return row | (in_browser(folder / f"{count}.html", folder) if PROGRAM else {})


def in_browser(page: Path, folder: Path) -> dict[str, Any]:
    """For each touch: what a frame costs the processor, and how long frames took beside whatever else it did."""
    with Browser(folder / page.stem) as browser:
        browser.ask("Performance.enable", timeDomain="threadTicks")
        browser.open(page.as_uri())
        browser.run("document.querySelector('#map').scrollIntoView({block: 'start', behavior: 'instant'})")
        browser.until("!!document.querySelector('canvas.base').dataset.k")
        found = {"milliseconds_to_open": round(1000 * _processor_seconds(browser))}
        browser.run(PREPARED)
        for name, script in TOUCHES.items():
            before = _processor_seconds(browser)
            times = browser.run(f"(async () => {{ times.length = 0; await frame(); {script} return times; }})()")
            spent, frames = 1000 * (_processor_seconds(browser) - before), np.diff(times)
            found[f"{name}_processor_ms"] = round(spent / len(frames), 2)
            found[f"{name}_frame_ms"] = round(float(np.median(frames)), 1)
            found[f"{name}_slow_frame_ms"] = round(float(np.quantile(frames, 0.95)), 1)
        assert browser.run("document.querySelectorAll('.files li').length")
    return found


def _processor_seconds(browser: Browser) -> float:
    """Of the thread that runs scripts, lays out and paints."""
    found = {metric["name"]: metric["value"] for metric in browser.ask("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    data = parser.parse_args().data
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch))
        for count in COUNTS:
            rows.append(row_of(data, run, count, Path(scratch)))
            print(rows[-1], flush=True)
    last = rows[-1]
    content = {
        "setting": f"made features of {WIDTH} numbers, thumbnails of photographs, a machine with other work",
        "bars": {"megabytes": MOST_MEGABYTES, "seconds": MOST_SECONDS},
        "is_within_bars": last["megabytes"] <= MOST_MEGABYTES and last["seconds"] <= MOST_SECONDS,
        "rows": rows,
    }
    write("report", "how long does a report of many images take, and does its map follow the pointer?", content)


if __name__ == "__main__":
    main()
