"""What a run's network makes of its images is kept in the run directory: the next page with the same is there at once.

What is kept belongs to weights by their bytes, and to what was asked for. A run whose images are gone since is shown as
it was seen last.
"""

from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from iecl.console import ProgressLine
from iecl.errors import UserError
from iecl.files import fault, open_plain, read_json, write_atomically
from iecl.reporting.sight_settings import SightSettings
from iecl.runs.directory import RunDirectory, strict_json

FORMAT = 1
NAME = "sights.json"
NEEDED: dict[str, Any] = {"format": int, "key": str, "sights": dict}
KNOWN: dict[str, Any] = {
    "notes": list[str],
    "shown": int,
    "total": int,
    "checkpoint": str,
    "gallery": dict,
    "map": dict,
}


def looked_at(path: Path, asked: SightSettings, line: ProgressLine) -> dict[str, Any]:
    """Pictures, neighbors, maps and layers of a run; a part that cannot be had is a sentence in `notes`."""
    if not asked.images:
        return {"notes": ["No images were looked at: --images 0."]}
    run = RunDirectory.existing(path)
    key = _key(run, asked)
    kept = _kept(run)
    if key and kept.get("key") == key:
        return dict(kept["sights"])
    from iecl.reporting.seeing import look

    try:
        found = look(run, asked, line)
    except UserError as problem:
        if kept and kept["key"].partition(" ")[0] == key.partition(" ")[0]:  # the same weights
            sights = dict(kept["sights"])
            sights["notes"] = [f"As seen by an earlier report: {problem.what}.", *sights.get("notes", [])]
            return sights
        return {"notes": [f"There are no pictures: {problem.what}."]}
    if key:
        with suppress(OSError):  # a run that may only be read is looked at each time
            _folder(run).mkdir(exist_ok=True)
            write_atomically(_folder(run) / NAME, strict_json({"format": FORMAT, "key": key, "sights": found}))
    return found


def last_sights(run: RunDirectory) -> dict[str, Any]:
    """What was kept, of whichever weights, and a key that changes with it; empty: nothing."""
    kept = _kept(run)
    return kept["sights"] | {"key": kept["key"]} if kept else {}


def _folder(run: RunDirectory) -> Path:
    return run.path / "report"


def _kept(run: RunDirectory) -> dict[str, Any]:
    try:
        found = read_json(_folder(run) / NAME)
    except UserError:
        return {}
    is_wrong = fault(found, needed=NEEDED) or found["format"] != FORMAT or fault(found["sights"], known=KNOWN)
    return {} if is_wrong else found


def _key(run: RunDirectory, asked: SightSettings) -> str:
    """A hash of the weights, and one of what is asked of them; empty where there are no weights."""
    names = {"final": [run.weights, run.checkpoints / "last.ckpt"], "best": [run.checkpoints / "best.ckpt"]}
    file = next((file for file in names.get(asked.checkpoint, [run.checkpoints / "last.ckpt"]) if file.exists()), None)
    if file is None:
        return ""
    weights = blake2b(digest_size=16)
    with open_plain(file) as opened:
        while part := opened.read(2**20):
            weights.update(part)
    table = Path(asked.columns).read_bytes() if asked.columns else b""
    wanted = {name: value for name, value in asdict(asked).items() if name != "device"}
    rest = blake2b(strict_json([FORMAT, wanted]).encode() + table, digest_size=16)
    return f"{weights.hexdigest()} {rest.hexdigest()}"
