"""The lines that load a file of weights without this library, where that is possible."""

import json
from collections.abc import Sequence

from iecl.backbones.catalog import AUXILIARY, VITS, timm_options

_HEADS = {
    "resnet18": "fc",
    "resnet34": "fc",
    "resnet50": "fc",
    "resnet101": "fc",
    "convnext_tiny": "classifier[2]",
    "vit_b_16": "heads.head",
}
"""Where torchvision's classifiers keep the layer that a backbone does without."""
_NARROW = {"resnet10-w16": 16, "resnet10-w32": 32}
_SMALL_STEM = ("model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)", "model.maxpool = torch.nn.Identity()")


def loading_snippet(
    backbone: str, file: str, format: str = "safetensors", *, mean: Sequence[float] = (), std: Sequence[float] = ()
) -> str:
    """Python that makes the backbone and loads the file, strictly; for Detectron2, what its settings need.

    >>> print(loading_snippet("resnet18", "cats.safetensors"))
    import safetensors.torch, torch, torchvision
    model = torchvision.models.resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(safetensors.torch.load_file("cats.safetensors"), strict=True)
    """
    quoted = json.dumps(file)
    if format == "detectron2":
        return _detectron2(backbone, quoted, mean, std)
    if format == "onnx":
        return _onnx(quoted)
    is_safetensors = format == "safetensors"
    read = f"safetensors.torch.load_file({quoted})" if is_safetensors else f"torch.load({quoted}, weights_only=True)"
    package, load = "safetensors.torch, " if is_safetensors else "", f"model.load_state_dict({read}, strict=True)"
    if backbone.startswith("torchvision/mnasnet"):
        load = _with_versions(read)
    if len(mean) not in (0, 3):
        load = "\n".join([*_other_channels(len(mean)), load])
    name = backbone.removeprefix("torchvision/")
    plain = name.removesuffix("-small")
    if backbone in VITS or backbone.startswith("timm/vit_") or backbone.startswith("timm/deit"):
        model, options = VITS.get(backbone, (backbone.removeprefix("timm/"), {}))
        asked = "".join(f", {key}={value}" for key, value in {**timm_options(model), **options}.items())
        used = "" if is_safetensors and len(mean) in (0, 3) else "torch, "
        return f'import {package}{used}timm\nmodel = timm.create_model("{model}", num_classes=0{asked})\n{load}'
    if backbone.startswith("timm/") or (format == "timm" and plain in _HEADS):
        used = "torch, " if plain != name or not is_safetensors or len(mean) not in (0, 3) else ""
        make = f'model = timm.create_model("{plain.removeprefix("timm/")}", num_classes=0)'
        return "\n".join([f"import {package}{used}timm", make, *(_SMALL_STEM if plain != name else ()), load])
    if backbone in _NARROW:
        return "\n".join([f"import {package}torch", *_narrow(_NARROW[backbone]), load])
    if backbone.startswith("torchvision/") and plain not in _HEADS:
        return "\n".join([f"import {package}torch, torchvision", *_any_of_torchvision(name), load])
    if plain not in _HEADS:
        extra = "" if is_safetensors else f", backbone={json.dumps(backbone)}"
        return f"from iecl.evaluation.model import load_model\nmodel = load_model({quoted}{extra}).backbone"
    lines = [f"import {package}torch, torchvision", f"model = torchvision.models.{plain}()"]
    lines += _SMALL_STEM if plain != name else ()
    return "\n".join([*lines, f"model.{_HEADS[plain]} = torch.nn.Identity()", load])


def _narrow(width: int) -> list[str]:
    """A ResNet of four blocks, from the parts of torchvision's."""
    stages = ", ".join(f"({width * times}, {1 if times == 1 else 2})" for times in (1, 2, 4, 8))
    return [
        "from torchvision.models.resnet import BasicBlock, ResNet",
        "model = ResNet(BasicBlock, [1, 1, 1, 1])",
        f"model.conv1 = torch.nn.Conv2d(3, {width}, 3, padding=1, bias=False)",
        f"model.bn1, model.inplanes = torch.nn.BatchNorm2d({width}), {width}",
        "model.maxpool, model.fc = torch.nn.Identity(), torch.nn.Identity()",
        f"for number, (width, stride) in enumerate([{stages}], start=1):",
        '    setattr(model, f"layer{number}", model._make_layer(BasicBlock, width, 1, stride=stride))',
    ]


def _other_channels(count: int) -> list[str]:
    """A new first convolution: names and shapes are then those of the file."""
    shape = "old.out_channels, old.kernel_size, old.stride, old.padding, bias=old.bias is not None"
    return [
        "name, old = next((n, part) for n, part in model.named_modules() if isinstance(part, torch.nn.Conv2d))",
        f"model.set_submodule(name, torch.nn.Conv2d({count}, {shape}))",
    ]


def _any_of_torchvision(name: str) -> list[str]:
    asked = "".join(f", {key}={value}" for key, value in AUXILIARY.get(name, {}).items())
    kind = "Conv2d" if name.startswith("squeezenet") else "Linear"
    return [
        f'model = torchvision.models.get_model("{name}"{asked})',
        f"*_, head = (name for name, part in model.named_modules() if isinstance(part, torch.nn.{kind}))",
        "model.set_submodule(head, torch.nn.Identity())",
    ]


def _with_versions(read: str) -> str:
    """For layers that ask which version of theirs the tensors are of, which a file of tensors does not say."""
    return "\n".join(
        [
            "from collections import OrderedDict",
            f"state = OrderedDict({read})",
            "state._metadata = model.state_dict()._metadata",
            "model.load_state_dict(state, strict=True)",
        ]
    )


def _onnx(quoted: str) -> str:
    return "\n".join(
        [
            "import onnxruntime",
            f"session = onnxruntime.InferenceSession({quoted})",
            'features = session.run(None, {"images": images})[0]  # float32, normalized by the mean and std inside',
        ]
    )


def _detectron2(backbone: str, quoted: str, mean: Sequence[float], std: Sequence[float]) -> str:
    """What Detectron2 needs to know: the order of colors, the constants on its scale, and where blocks have strides."""
    depth = backbone.removeprefix("torchvision/").removeprefix("resnet")
    pixel_mean, pixel_std = ([round(255 * value, 3) for value in values] for values in (mean, std))
    narrow = ["    RES2_OUT_CHANNELS: 64"] if depth in ("18", "34") else []
    lines = ["MODEL:", f"  WEIGHTS: {quoted}", f"  PIXEL_MEAN: {pixel_mean}", f"  PIXEL_STD: {pixel_std}", "  RESNETS:"]
    lines += [f"    DEPTH: {depth}", "    STRIDE_IN_1X1: false", *narrow]
    return "\n".join([*lines, "INPUT:", '  FORMAT: "RGB"'])
