"""Pictures of views: of a step that a run has taken, and of a run that is not begun. Imports wait for the functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from iecl.api import Run
from iecl.arguments import Arguments, CommonSettings, speaks_python
from iecl.brought import at_hand


@speaks_python
def draw_views(
    run: str | Path, step: int, out: str | Path, *, index: int | None = None, row: int | None = None
) -> dict[str, Any]:
    """Draw the views of one training image again, exactly, and write them beside it as an image.

    Args:
        run: the run directory.
        step: an optimizer step of the run, from 1 on.
        out: a .png file.
        index: which image of the data: its views in the epoch of that step.
        row: which of the step's own images; exactly one of the two is given.
    """
    from iecl.training.drawn_views import look, save_image

    seen = look(run, step, index=index, row=row)
    data = Run(Path(run)).settings["data"]
    save_image(seen, tuple(data["mean"]), tuple(data["std"]), Path(out))
    facts = {name: getattr(seen, name) for name in ("index", "step", "row", "epoch", "position")}
    return {"path": str(out), "image": seen.path, **facts, "draws": list(seen.draws)}


@speaks_python
def preview(
    data: Any = "",
    out: str | Path = "views.png",
    *,
    images: int = 6,
    method: Any = "",
    recipe: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Iterable[str] = (),
    **common: Unpack[CommonSettings],
) -> dict[str, Any]:
    """Draw what a run would see, before it is started: images, each augmentation alone, and whole views, as a PNG.

    Args:
        data: this, `method`, `recipe`, `settings`, `sets` and `common`: as for `pretrain`.
        out: a .png file.
        images: how many images to show.
        method: a name from `iecl list methods`.
        recipe: a name from `iecl list recipes`, a TOML file, or a run directory.
        settings: further settings by section.
        sets: the same as text, as in `["augmentation.query.hue=0"]`.
        **common: as for `pretrain`.

    Returns:
        The path, how many images there are, the words of each row, and which augmentations are off.
    """
    from iecl.data.defaults import resolve_data
    from iecl.training.config import make_config, with_data

    arguments = Arguments()
    given, method = arguments.settings(data, common, settings, "iecl.preview"), arguments.method(method)
    resolved = make_config(method=method, recipe=recipe, flags=given, sets=sets)
    from iecl.training.view_sheet import write_sheet  # and with it torch, where no name is wrong

    with at_hand(arguments.things):
        return write_sheet(with_data(resolved, resolve_data(resolved.data)), images, Path(out))
