"""torchvision's ImageNet weights: those on this disk, or fetched if somebody asked for that."""

from pathlib import Path
from urllib.parse import urlsplit

import torch
from torchvision import models

from iecl.errors import UserError
from iecl.weights.external import external_model
from iecl.weights.model import LoadedModel

USUAL = "resnet18"
"""The backbone that is taken where none is named."""
WHERE = "--from imagenet"


def imagenet_model(backbone: str = "", *, download: bool = False) -> LoadedModel:
    """A backbone with the weights that torchvision offers for it; they are fetched only with `download`.

    Raises:
        UserError: there are none for this backbone, or they are not on this disk and were not to be fetched.
    """
    backbone = backbone or USUAL
    name = backbone.removeprefix("torchvision/")
    if name not in models.list_models(module=models):
        do = f"use --backbone {USUAL} or another of torchvision's, or name a file of weights"
        raise UserError(f"torchvision has no weights for {backbone}", where=f"{WHERE}, --backbone", do=do)
    url = str(models.get_model_weights(name).DEFAULT.url)
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name
    if not file.exists():
        if not download:
            do = f"add --download to fetch them from {urlsplit(url).hostname}, or put the file there"
            raise UserError(f"the ImageNet weights of {backbone} are not in {file}", where=WHERE, do=do)
        _fetch(url, file)
    return external_model(file, backbone, method="supervised")


def _fetch(url: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:  # beside the place, checked by the digits of its hash that its name holds, then moved
        torch.hub.download_url_to_file(url, str(file), hash_prefix=file.stem.rpartition("-")[2], progress=False)
    except (OSError, RuntimeError) as problem:
        raise UserError(f"{url} cannot be fetched: {problem}", where=WHERE, do=f"put it to {file}") from problem
