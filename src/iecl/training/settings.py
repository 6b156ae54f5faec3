"""How a run is optimized, how long, and on what."""

import math
from dataclasses import dataclass

from iecl.errors import UserError
from iecl.files import LARGEST
from iecl.settings import MOST, setting


@dataclass(frozen=True, kw_only=True)
class BackboneSettings:
    """Which network is trained."""

    name: str = setting(
        "auto", "a name from: iecl list backbones; auto: ResNet-18 with a stem for the image size", flag="--backbone"
    )
    zero_init_residual: bool = setting(
        False, "ResNets: the last norm of each residual block starts at zero, so that blocks begin as the identity"
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The optimizer and its schedule: a linear warm-up, then half a cosine."""

    name: str = setting("adamw", "which optimizer", choices=("adamw", "sgd", "lars"))
    lr: float = setting(1e-3, "peak learning rate", above=0)
    lr_base_batch: int = setting(
        0, "images for which `lr` is meant: it is scaled linearly with the batch; 0: not scaled", low=0
    )
    weight_decay: float = setting(1e-4, "weight decay", low=0)
    decay_norms: bool = setting(False, "decay biases and norms too, as MoCo-v2 and SimSiam do")
    momentum: float = setting(0.9, "momentum of SGD and LARS, first beta of AdamW", low=0, high=1)
    beta2: float = setting(0.999, "second beta of AdamW", low=0, high=1)
    trust_coefficient: float = setting(1e-3, "LARS: share of a weight's norm that a step may move", above=0)
    trust_clip: bool = setting(False, "LARS: never a longer step than SGD's, as in solo-learn's CIFAR recipes")
    warmup_epochs: float = setting(0.0, "epochs of linear warm-up, at most a tenth of the run", low=0, high=MOST)
    min_lr_ratio: float = setting(0.0, "share of the peak learning rate that is left at the end", low=0, high=1)
    grad_clip: float = setting(0.0, "largest norm of the whole gradient; 0: no limit", low=0)

    def peak(self, batch: int) -> float:
        """The learning rate after warm-up, for this many images in an optimizer step."""
        return self.lr * batch / self.lr_base_batch if self.lr_base_batch else self.lr

    def warmup_steps(self, per_epoch: int, steps: int) -> int:
        """Steps of warm-up; a short run warms up for at most a tenth of its length."""
        return min(round(self.warmup_epochs * per_epoch), steps // 10)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Length, seed, machine, and what is written while training."""

    epochs: int = setting(
        100, "passes over the data; fewer are chosen without a GPU, if nothing is said", low=1, flag="--epochs"
    )
    batch_size: int = setting(
        256, "images in a loss, over all processes; fewer are chosen for few images", low=2, flag="--batch-size"
    )
    grad_accumulation: int = setting(
        1, "batches in an optimizer step; not the same as a larger batch, see the docs", low=1
    )
    seed: int = setting(0, "decides every random draw", low=0, high=LARGEST, flag="--seed")
    accelerator: str = setting(
        "auto",
        "what to train on; gpu: cuda or mps",
        choices=("auto", "cpu", "gpu", "cuda", "mps"),
        flag="--accelerator",
    )
    devices: int = setting(
        1, "processes on this machine, one for each device; 0: all devices", low=0, high=1024, flag="--devices"
    )
    nodes: int = setting(1, "machines", low=1, flag="--nodes")
    strategy: str = setting(
        "auto",
        "how processes work together; auto: ddp where there are several; fsdp: each keeps a share of the weights",
        choices=("auto", "ddp", "fsdp"),
        flag="--strategy",
    )
    sync_batch_norm: str = setting(
        "auto",
        "batch norm over the images of all processes; auto: on, unless method.norm_groups keeps parts of them apart",
        choices=("auto", "on", "off"),
    )
    precision: str = setting(
        "auto",
        "arithmetic; auto: bf16 where the machine has units for it, else 32 bits",
        choices=("auto", "32-true", "bf16-mixed", "16-mixed"),
    )
    channels_last: bool = setting(True, "memory layout in which convolutions are faster on most machines")
    deterministic: bool = setting(
        False,
        "on a GPU, the same bits each time: slower kernels, and an error where torch has none; a CPU needs it not",
    )
    gradient_checkpointing: bool = setting(
        False, "compute activations again in the backward pass: less memory, a third more time, the same numbers"
    )
    grad_cache: int = setting(
        0,
        "most images in the backbone at a time, while the loss sees the whole batch: memory for so many, a third to "
        "a half more time; batch norm sees so many too; 0: all",
        low=0,
    )
    compile: bool = setting(
        False, "compile backbones with torch: a minute or two at the start, steps a tenth faster; needs a C++ compiler"
    )
    log_steps: int = setting(10, "optimizer steps between two rows of metrics", low=1, high=LARGEST)
    meter_steps: int = setting(50, "optimizer steps between two readings of the meters", low=1, high=LARGEST)
    online_eval_epochs: int = setting(
        1, "epochs between two online evaluations of a fixed sample: scores, kNN if there are labels; 0: never", low=0
    )
    outcome: bool = setting(
        True, "at the end: scores beside an untrained network and raw pixels, and a picture of nearest neighbors"
    )
    checkpoint_steps: int = setting(
        0, "optimizer steps between two checkpoints; 0: one each epoch", low=0, high=LARGEST
    )
    keep_epochs: tuple[float, ...] = setting(
        (), "moments whose checkpoints stay: epochs, 0 for the start, or shares of the run such as 0.25", low=0
    )
    requeue: bool = setting(
        False, "in a SLURM job that is warned by SIGUSR1 or SIGUSR2: save, and ask SLURM to run the job again"
    )
    loggers: tuple[str, ...] = setting(
        ("tensorboard",), "besides metrics.jsonl", choices=("tensorboard", "csv", "wandb", "mlflow")
    )

    def check(self) -> None:
        """Raise a `UserError` for settings that cannot be had together."""
        self.kept_epochs()
        again = "gradient_checkpointing" if self.gradient_checkpointing else "grad_cache" if self.grad_cache else ""
        if self.compile and again:
            raise UserError(
                "torch cannot compile a backbone that computes activations again",
                where=f"training.compile, training.{again}",
                do="leave one of them out",
            )
        if self.strategy == "fsdp" and self.grad_cache:
            do = "leave it out, or use --strategy ddp"
            raise UserError("fsdp takes whole batches", where="training.grad_cache", do=do)
        if self.strategy == "fsdp" and self.compile:
            raise UserError("fsdp cannot compile", where="training.compile", do="leave it out, or use --strategy ddp")
        if self.strategy == "fsdp" and self.precision == "16-mixed":
            do = "use bf16-mixed or 32-true, or --strategy ddp"
            raise UserError("fsdp does not scale 16-bit gradients", where="training.precision", do=do)

    def kept_epochs(self) -> tuple[int, ...]:
        """The epochs after which a checkpoint is kept; of a share, the end of the epoch in which it is reached.

        >>> TrainingSettings(epochs=10, keep_epochs=(0, 0.25, 5, 10)).kept_epochs()
        (0, 3, 5, 10)

        Raises:
            UserError: the run has no such moment.
        """
        # Rounded first: 0.07 of 100 epochs is a little more than 7 in binary.
        found = [math.ceil(round(self.epochs * one, 6)) if one < 1 else one for one in self.keep_epochs]
        wrong = next((one for one in found if one > self.epochs or one != int(one)), None)
        if wrong is not None:
            raise UserError(
                f"training.keep_epochs holds {wrong:g}, which is no epoch of a run of {self.epochs}",
                where="training.keep_epochs",
                do=f"give whole numbers from 0 to {self.epochs}, or shares below 1",
            )
        return tuple(sorted({int(one) for one in found}))
