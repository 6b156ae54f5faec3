"""Run directories as training leaves them, without the training."""

from pathlib import Path

import torch

from iecl.files import write_atomically
from iecl.methods.contract import Method
from iecl.runs.checkpoint import save_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, config_from_values
from iecl.training.factory import build_method
from iecl.training.trained_backbone import trained_backbone
from iecl.weights.model import save_model

MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.2, 0.3]


class MadeRun:
    """A run on 16 px images, and its method."""

    def __init__(
        self,
        path: Path,
        *,
        data: str = "digits",
        method: str = "moco-v2",
        encoder: str = "none",
        backbone: str = "resnet10-w16",
    ) -> None:
        self.directory = RunDirectory.fresh(path)
        self.config: RunConfig = config_from_values(
            {
                "method": {"name": method, "hidden_dim": 8, "out_dim": 4, "queue_size": 8},
                "data": {"name": data, "image_size": 16, "decode_size": 16, "mean": MEAN, "std": STD, "num_workers": 0},
                "augmentation": {"policy": "simclr-small"},
                "backbone": {"name": backbone},
                "saib": {"form": "none"},
                "objective": {"encoder": encoder},
                "training": {"batch_size": 4},
            }
        )
        write_atomically(self.directory.settings, self.config.to_toml("made for a test"))
        self.method = self.make_method(seed=1)

    def make_method(self, seed: int) -> Method:
        """The method with encoder weights and statistics that no fresh backbone has."""
        method = build_method(self.config)
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in method.encoder().parameters():
                weight.mul_(1 + 0.2 * torch.rand(weight.shape, generator=made))
        method.encoder()(torch.randn(8, 3, 16, 16, generator=made))  # batch norm takes note
        return method.eval()

    def save_weights(self) -> None:
        """What a run writes when it is finished."""
        state = self.method.state_dict()
        save_model(self.directory.weights, trained_backbone(self.config, state, 9, checkpoint="final", where=""))

    def save_checkpoint(self, step: int, is_best: bool = False) -> None:
        """What a run writes now and then."""
        state = {"step": step, "method": self.method.state_dict()}
        save_checkpoint(self.directory.checkpoints, state, is_best=is_best)
