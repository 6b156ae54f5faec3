"""Files of other people, made from any backbone: what each layout holds, typed here a second time."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iecl.weights.external import external_model
from iecl.weights.layouts import LAYOUTS

ROW = {"conv1.": "0.", "bn1.": "1.", "layer1.": "4.", "layer2.": "5.", "layer3.": "6.", "layer4.": "7."}
BESIDE = {
    "plain": ["fc.weight"],
    "ddp": ["module.fc.weight"],
    "compiled": [],
    "wrapped": ["fc.bias"],
    "wrapped-ddp": ["module.fc.bias"],
    "model": ["head.weight"],
    "moco": ["module.encoder_q.fc.0.weight", "module.encoder_k.conv1.weight", "module.queue", "module.queue_ptr"],
    "moco-v3": [
        "module.base_encoder.fc.0.weight",
        "module.momentum_encoder.conv1.weight",
        "module.predictor.0.weight",
    ],
    "simsiam": ["module.encoder.fc.0.weight", "module.predictor.0.weight"],
    "swav": ["module.projection_head.0.weight", "module.prototypes.weight"],
    "swav-checkpoint": ["module.projection_head.0.weight", "module.prototypes.weight"],
    "dino-teacher": ["head.mlp.0.weight"],
    "dino-student": ["module.head.mlp.0.weight"],
    "barlow-twins": ["module.projector.0.weight", "module.bn.running_mean"],
    "solo-learn": ["projector.0.weight", "classifier.weight", "momentum_backbone.conv1.weight", "queue"],
    "solo-learn-old": ["projector.0.weight", "classifier.weight", "momentum_encoder.conv1.weight"],
    "lightly": ["projection_head.layers.0.weight", "backbone_momentum.0.weight"],
    "detectron2": ["stem.fc.weight"],
    "lightning": ["loss.weight"],
    "lightning-net": ["loss.weight"],
}
"""What such a file holds besides the backbone."""


def named(layout: str, state: dict[str, Tensor]) -> dict[str, object]:
    """The state as a file of this layout has it."""
    row = LAYOUTS[layout]
    plain = dict(state)
    if layout == "lightly":
        plain = {next(ROW[k] + n.removeprefix(k) for k in ROW if n.startswith(k)): t for n, t in state.items()}
    if layout == "detectron2":
        plain = {in_detectron2(n): t for n, t in state.items() if not n.endswith("num_batches_tracked")}
    table = {row.prefix + name: tensor for name, tensor in plain.items()}
    table |= {name: torch.randn(2, 3) for name in BESIDE[layout]}
    return {row.table: table, "epoch": 7} if row.table else table


def backbone_from_file(path: Path, backbone: str, **options: Any) -> tuple[nn.Module, str]:
    """What is read of such a file, and the proof of it."""
    model = external_model(path, backbone, **options)
    return model.backbone, model.proof


def in_detectron2(name: str) -> str:
    """A torchvision ResNet's name as Detectron2 has it: norms belong to convolutions, stages are counted from 2.

    >>> in_detectron2("layer3.1.bn2.bias"), in_detectron2("conv1.weight")
    ('res4.1.conv2.norm.bias', 'stem.conv1.weight')
    """
    name = re.sub(r"\bbn(\d)\b", r"conv\1.norm", name)
    name = name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
    return re.sub(r"^layer(\d)", lambda m: f"res{int(m[1]) + 1}", name) if name.startswith("layer") else f"stem.{name}"
