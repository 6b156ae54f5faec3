"""A pretrained ResNet as a part of a larger network, with proof that it holds the tensors that were pretrained.

A detector that was built around fresh weights trains as well as any, only to a worse number, and nobody notices. So the
network is built again from its name, given all tensors under their own names, and checked again when it is built in.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.weights.file import load_into, proof
from iecl.weights.model import LoadedModel

STAGES = ("layer1", "layer2", "layer3", "layer4")
STEM = ("conv1", "bn1", "relu", "maxpool")


def pretrained_resnet(model: LoadedModel, evaluation: str) -> Any:
    """A copy of the model's backbone, a torchvision ResNet with the tensors it was trained to.

    Raises:
        UserError: the backbone is of another kind, or its tensors do not have a ResNet's names and shapes.
    """
    made = make_backbone(model.name)
    if not isinstance(made, ResNet):
        raise UserError(
            f"{evaluation} needs a torchvision ResNet, {model.name} is none",
            where="MODEL",
            do="pretrain with a backbone called resnet...",
        )
    load_into(made, model.backbone.state_dict(), f"{evaluation}, backbone {model.name}")
    return made


def built_in_proof(parts: Mapping[str, nn.Module], state: Mapping[str, Tensor]) -> str:
    """One line that says that the parts of a ResNet, taken from the network they were built into, hold these tensors.

    Args:
        parts: stem and stages by the names that they have in a ResNet.
        state: the tensors of the pretrained backbone.

    Raises:
        UserError: a tensor is missing, left over or has another value.
    """
    held = {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.state_dict().items()}
    missing, unexpected = sorted(state.keys() - held.keys()), sorted(held.keys() - state.keys())
    if missing or unexpected:
        raise UserError(
            f"the network does not hold the pretrained weights: missing {missing[:5]}, unexpected {unexpected[:5]}",
            where="MODEL",
        )
    whole = nn.Module()
    for name, part in parts.items():
        whole.add_module(name, part)
    return proof(whole, state)


def channels_of(stage: nn.Module) -> int:
    """How many channels a stage gives."""
    return norms_of([block for block in stage.children()][-1:])[-1].num_features


def dilate(resnet: Any, output_stride: int) -> int:
    """Stop a ResNet from shrinking its maps below 1 / output_stride; returns the stride that it has then.

    A stage that would go below takes no stride and spreads the 3×3 kernels after it instead, so that every second value
    is the one it had before. Names and shapes of the weights stay. torchvision does this for bottlenecks only; here
    basic blocks are treated alike. A network that shrinks less by itself keeps its own stride.
    """
    stride, spread = stem_stride(resnet), 1
    for name in STAGES:
        stage = getattr(resnet, name)
        own = _strided(stage[0]).stride[0]
        if stride * own <= output_stride:
            stride, after = stride * own, spread
        else:
            after = spread * own
            _remove_stride(stage[0])
        for number, block in enumerate(stage):
            for conv in _wide_kernels(block):
                # The kernel that had the stride still stands before the place where values were left out.
                _spread(conv, spread if number == 0 and conv is _strided(block) else after)
        spread = after
    return stride


def stem_stride(resnet: Any) -> int:
    """How much the stem shrinks an image: 4, or 1 for small images."""
    pool = resnet.maxpool.stride if isinstance(resnet.maxpool, nn.MaxPool2d) else 1
    return int(resnet.conv1.stride[0] * pool)


def strides_of(resnet: Any) -> list[int]:
    """How much smaller than the image the map of each stage is."""
    strides, stride = [], stem_stride(resnet)
    for name in STAGES:
        stride *= int(_strided(getattr(resnet, name)[0]).stride[0])
        strides.append(stride)
    return strides


def _strided(block: Any) -> nn.Conv2d:
    """The kernel of a block that takes its stride."""
    conv: nn.Conv2d = block.conv2 if isinstance(block, Bottleneck) else block.conv1
    return conv


def _wide_kernels(block: Any) -> list[nn.Conv2d]:
    return [block.conv2] if isinstance(block, Bottleneck) else [block.conv1, block.conv2]


def _remove_stride(block: Any) -> None:
    block.stride = 1
    _strided(block).stride = (1, 1)
    if block.downsample is not None:
        block.downsample[0].stride = (1, 1)


def _spread(conv: nn.Conv2d, dilation: int) -> None:
    conv.dilation = conv.padding = (dilation, dilation)


def training_mode(network: nn.Module, resnet_parts: Iterable[nn.Module], batch_norm: str) -> None:
    """Training mode, but where batch norm is `frozen` that of the ResNet keeps its statistics, scales and shifts."""
    network.train()
    if batch_norm == "frozen":
        for norm in norms_of(resnet_parts):
            norm.eval()


def freeze_norms(resnet_parts: Iterable[nn.Module]) -> None:
    """Take the scales and shifts of batch norm out of the training."""
    for norm in norms_of(resnet_parts):
        for weight in norm.parameters():
            weight.requires_grad_(False)


def norms_of(parts: Iterable[nn.Module]) -> list[nn.BatchNorm2d]:
    """Every batch norm of some parts."""
    return [inner for part in parts for inner in part.modules() if isinstance(inner, nn.BatchNorm2d)]
