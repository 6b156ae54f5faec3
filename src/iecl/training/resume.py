"""What a run that goes on may change, and what it may not."""

import logging
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from iecl.data.defaults import folder_of
from iecl.errors import UserError
from iecl.methods import load_method
from iecl.runs.directory import RunDirectory
from iecl.settings import merge, parse_assignment
from iecl.training.config import (
    Change,
    RunConfig,
    config_from_values,
    difference,
    read_config,
    recorded_values,
    with_launch,
    with_norms,
)

log = logging.getLogger("iecl.training")
PROCESSES = ("training.devices", "training.nodes", "training.strategy")
NORMS = "training.sync_batch_norm"
FREE = ("data.num_workers", "data.bad_shards", "training.loggers", "training.requeue", NORMS, *PROCESSES)
"""Images and draws are the same for any number of workers and processes: these may be others than before.

And a run that a bad shard ended may go on without it.
"""


def settings_to_resume(
    run: RunDirectory, method: str, flags: Mapping[str, Any], sets: Iterable[str]
) -> tuple[RunConfig, list[Change]]:
    """The run's own configuration with what was given now laid over it, and everything that differs.

    Raises:
        UserError: something differs that decides how the run goes on; both values are named.
    """
    before = read_config(run)
    asked_now = reduce(merge, map(parse_assignment, sets), flags)
    after = merge(recorded_values(run), asked_now)
    if method not in ("", before.method_name, before.host_name):  # its settings are others: nothing more to compare
        raise _refused(run, [Change("method.name", before.method_name, method)])
    new = config_from_values(after)
    if "name" in flags.get("data", {}):
        name, *more = (str(folder_of(name) or name) for name in new.data.names)
        after["data"] = {**after["data"], "name": name, "more": more}
        new = config_from_values(after)
    # A launcher decides anew how many processes there are, unless somebody says so now.
    new = with_launch(new, is_asked=not {"devices", "nodes"}.isdisjoint(asked_now.get("training", {})))
    changed = difference(before, new)
    # The printed block is as wide as one process's part of the batch.
    free = set(FREE) - set(PROCESSES) if new.saib.form == "batch" else set(FREE)
    refused = [change for change in changed if change.name not in free]
    if refused:
        raise _refused(run, refused)
    others = [change for change in changed if change.name in (NORMS, *PROCESSES)]
    if others:
        words = "images and draws stay the same, rounding does not"
        if _parts(before) != _parts(new):
            words += ", and batch norm sees another part of the batch"
        log.warning("%s: %s", "; ".join(map(str, others)), words)
    return new, changed


def _parts(config: RunConfig) -> int:
    """In how many parts processes cut a batch for its batch norms."""
    training, host = with_norms(config).training, load_method(config.host_name)
    # Norms in groups see the same groups however many processes share them; the printed block has norms of its own.
    has_groups = host.has_group_norms(config.method_settings()) and config.saib.form != "sample"
    return 1 if has_groups or training.sync_batch_norm == "on" else training.devices * training.nodes


def _refused(run: RunDirectory, changes: Iterable[Change]) -> UserError:
    words = "; ".join(map(str, changes))
    do = "use the same values, or another --out"
    return UserError(f"a resumed run keeps its settings: {words}", where=str(run.settings), do=do)
