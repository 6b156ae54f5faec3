"""What a run that goes on may change, and what it may not."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from iecl.data.defaults import folder_of
from iecl.errors import UserError
from iecl.methods import load_method
from iecl.runs.directory import RunDirectory
from iecl.settings import merge, parse_assignment
from iecl.training.config import Change, RunConfig, config_from_values, difference, read_config, with_launch

log = logging.getLogger("iecl.training")
PROCESSES = ("training.devices", "training.nodes", "training.strategy")
FREE = ("data.num_workers", "data.bad_shards", "training.loggers", *PROCESSES)
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
    after = merge(run.read_settings(), flags)
    for text in sets:
        after = merge(after, parse_assignment(text))
    if method not in ("", before.method_name, before.host_name):  # its settings are others: nothing more to compare
        raise _refused(run, [Change("method.name", before.method_name, method)])
    new = config_from_values(after)
    if "name" in flags.get("data", {}):
        name, *more = (str(folder_of(name) or name) for name in new.data.names)
        after["data"] = {**after["data"], "name": name, "more": more}
        new = config_from_values(after)
    new = with_launch(new)
    changed = difference(before, new)
    # The printed block is as wide as one process's part of the batch.
    free = set(FREE) - set(PROCESSES) if new.saib.form == "batch" else set(FREE)
    refused = [change for change in changed if change.name not in free]
    if refused:
        raise _refused(run, refused)
    others = [change for change in changed if change.name in PROCESSES]
    if others:
        words = "images and draws stay the same, rounding does not"
        # Norms in groups see the same groups however many processes share them; the printed block has norms of its own.
        host = load_method(new.host_name)
        if not host.has_group_norms(new.method_settings()) or new.saib.form == "sample":
            words += ", and batch norm sees another part of the batch"
        log.warning("%s: %s", "; ".join(map(str, others)), words)
    return new, changed


def _refused(run: RunDirectory, changes: Iterable[Change]) -> UserError:
    words = "; ".join(map(str, changes))
    do = "use the same values, or another --out"
    return UserError(f"a resumed run keeps its settings: {words}", where=str(run.settings), do=do)
