"""What a run on these images would choose, and what it would take."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from iecl.checks.scan import Scan
from iecl.console import duration
from iecl.data.defaults import count_images
from iecl.data.settings import DataSettings
from iecl.errors import UserError
from iecl.launch import is_gpu_at_hand
from iecl.settings import as_values
from iecl.training.choices import CPU_SIDE, Said, rungs, with_batch, with_steps
from iecl.training.config import layers, make_config, with_data

_MOSTLY = 0.9


def suggestions(scan: Scan, data: DataSettings) -> list[dict[str, str]]:
    """Settings for `iecl pretrain`, each with the reason."""
    given = {"data": {name: value for name, value in as_values(data).items() if name in ("name", "more", "exclude")}}
    said = Said.of(*layers(flags=given))
    asked, images, has_gpu = make_config(flags=given), count_images(data), is_gpu_at_hand()
    config = with_data(asked, data) if has_gpu else next(rungs(replace(asked, data=data), said))
    size, machine = config.data.image_size, "" if has_gpu else "; without a GPU"
    records = scan.records[scan.readable]
    side = float(np.median(np.minimum(records["height"], records["width"]))) if len(records) else 0
    stem = "a stem that keeps the size of small views" if size <= CPU_SIDE else "a stem that quarters the view"
    made = [
        _row("image size", size, "--image-size", f"the median shorter side is {side:,.0f} px{machine}"),
        _row("backbone", config.backbone.name, "--backbone", f"{stem}{machine}"),
    ]
    try:
        config = with_batch(config, said, images)
        batch = (config if has_gpu else with_steps(config, said, images)).training.batch_size
        made.append(_row("batch size", batch, "--batch-size", f"{images:,} images to train on"))
    except UserError:  # too few images, which is said elsewhere
        pass
    gray = float((records["color"] < 0.01).mean()) if len(records) else 0.0
    if gray >= _MOSTLY:
        why = f"{100 * gray:.0f} % of the images are gray: changes of color would do nothing"
        made.append(_row("channels", 1, "--set data.channels=1", why, is_whole=True))
    else:
        policy = config.augmentation.policy
        made.append(_row("augmentation", policy, "--augmentation", "the method's own; see it with: iecl views"))
    return made


def _row(what: str, value: Any, flag: str, why: str, *, is_whole: bool = False) -> dict[str, str]:
    return {"what": what, "value": str(value), "flag": flag if is_whole else f"{flag} {value}", "why": why}


def planned(names: Iterable[str], exclude: str, seconds: float, *, quiet: bool) -> str:
    """What a run with all defaults will take, on one line, after steps were tried for so long. Imports torch."""
    from iecl.pretraining import Asked
    from iecl.pretraining import planned as choose
    from iecl.training.forecast import predict

    name, *more = names
    given = {"data": {"name": name, "more": more, "exclude": exclude}}
    config, _ = choose(Asked(Path(), "", "", given, (), overwrite=False))
    made = predict(config, seconds, quiet=quiet)
    what = f"{made['method']} with {made['backbone']}, {made['epochs']} epochs in batches of {made['batch']:,}"
    memory, disk = made["memory_megabytes"], made["disk_megabytes"]
    return f"{what}: about {duration(made['seconds'])}, {memory:,} MB of memory, {disk:,.0f} MB on disk"
