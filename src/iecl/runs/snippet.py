"""The lines of Python that load a file of weights without this library, where that is possible."""

import json

_HEADS = {
    "resnet18": "fc",
    "resnet34": "fc",
    "resnet50": "fc",
    "resnet101": "fc",
    "convnext_tiny": "classifier[2]",
    "vit_b_16": "heads.head",
}
"""Where torchvision's classifiers keep the layer that a backbone does without."""


def loading_snippet(backbone: str, file: str) -> str:
    """Python that makes the backbone and loads the file, strictly.

    >>> print(loading_snippet("resnet18", "cats.safetensors"))
    import safetensors.torch, torch, torchvision
    model = torchvision.models.resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(safetensors.torch.load_file("cats.safetensors"), strict=True)
    """
    quoted = json.dumps(file)
    load = f"model.load_state_dict(safetensors.torch.load_file({quoted}), strict=True)"
    if backbone.startswith("timm/"):
        name = backbone.removeprefix("timm/")
        lines = ["import safetensors.torch, timm", f'model = timm.create_model("{name}", num_classes=0)', load]
        return "\n".join(lines)
    name = backbone.removeprefix("torchvision/")
    plain = name.removesuffix("-small")
    if plain not in _HEADS:
        return f"from iecl.evaluation.model import load_model\nmodel = load_model({quoted}).backbone"
    lines = ["import safetensors.torch, torch, torchvision", f"model = torchvision.models.{plain}()"]
    if plain != name:
        lines += [
            "model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)",
            "model.maxpool = torch.nn.Identity()",
        ]
    return "\n".join([*lines, f"model.{_HEADS[plain]} = torch.nn.Identity()", load])
