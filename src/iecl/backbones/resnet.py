"""torchvision ResNets for small images: a 3×3 stem of stride 1 without max-pool, and narrow ones that train on a CPU.

Padding of the stem is 1, so a 32×32 image stays 32×32. All keys are torchvision's.
"""

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet, resnet18, resnet34, resnet50

from iecl.backbones.from_torchvision import without_head


def small_stem(model: ResNet, width: int = 64) -> ResNet:
    """Replace the stem that an image of 224 pixels needs by one that keeps the resolution."""
    model.conv1 = nn.Conv2d(3, width, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # torchvision's own choice
    model.maxpool = nn.Identity()
    return model


def _narrow(width: int) -> nn.Module:
    """Four stages of one basic block with `width`, 2, 4 and 8 times `width` channels."""
    model = small_stem(ResNet(BasicBlock, [1, 1, 1, 1]), width)
    model.bn1 = nn.BatchNorm2d(width)
    model.inplanes = width
    for stage, (times, stride) in enumerate(((1, 1), (2, 2), (4, 2), (8, 2)), start=1):
        layer = model._make_layer(BasicBlock, width * times, 1, stride=stride)
        for part in layer.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        setattr(model, f"layer{stage}", layer)
    model.fc = nn.Linear(width * 8, 1)
    return without_head(model)


def resnet10_w16() -> nn.Module:
    """Four stages of one block, 16 to 128 channels."""
    return _narrow(16)


def resnet10_w32() -> nn.Module:
    """Four stages of one block, 32 to 256 channels."""
    return _narrow(32)


def resnet18_small() -> nn.Module:
    """ResNet-18 with the small-image stem."""
    return without_head(small_stem(resnet18()))


def resnet34_small() -> nn.Module:
    """ResNet-34 with the small-image stem."""
    return without_head(small_stem(resnet34()))


def resnet50_small() -> nn.Module:
    """ResNet-50 with the small-image stem."""
    return without_head(small_stem(resnet50()))
