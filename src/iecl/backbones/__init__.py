"""The table of backbones: ordinary torchvision or timm modules whose last layer is the feature."""

from iecl.registry import Entry

# The cost in the summary is in multiply-accumulates for one image of the size that the backbone is made for.
BACKBONES: dict[str, Entry] = {
    "resnet10-w16": Entry(
        "iecl.backbones.resnet:resnet10_w16", "128 features, 16 MMAC at 32 px: for a CPU, small images"
    ),
    "resnet10-w32": Entry("iecl.backbones.resnet:resnet10_w32", "256 features, 64 MMAC at 32 px: small images"),
    "resnet18-small": Entry("iecl.backbones.resnet:resnet18_small", "512 features, 555 MMAC at 32 px: the CIFAR stem"),
    "resnet34-small": Entry("iecl.backbones.resnet:resnet34_small", "512 features, 1.16 GMAC at 32 px: the CIFAR stem"),
    "resnet50-small": Entry(
        "iecl.backbones.resnet:resnet50_small", "2048 features, 1.30 GMAC at 32 px: the CIFAR stem"
    ),
    "resnet18": Entry("iecl.backbones.from_torchvision:resnet18", "512 features, 1.81 GMAC at 224 px"),
    "resnet34": Entry("iecl.backbones.from_torchvision:resnet34", "512 features, 3.66 GMAC at 224 px"),
    "resnet50": Entry("iecl.backbones.from_torchvision:resnet50", "2048 features, 4.09 GMAC at 224 px"),
    "resnet101": Entry("iecl.backbones.from_torchvision:resnet101", "2048 features, 7.80 GMAC at 224 px"),
    "convnext_tiny": Entry("iecl.backbones.from_torchvision:convnext_tiny", "768 features, 4.45 GMAC at 224 px"),
    "vit_ti_4": Entry(
        "iecl.backbones.from_timm:vit_ti_4", "192 features, 365 MMAC at 32 px: a ViT with patches of 4 px; timm"
    ),
    "vit_s_4": Entry(
        "iecl.backbones.from_timm:vit_s_4", "384 features, 1.42 GMAC at 32 px: a ViT with patches of 4 px; timm"
    ),
    "vit_ti_16": Entry("iecl.backbones.from_timm:vit_ti_16", "192 features, 1.25 GMAC at 224 px, any size; timm"),
    "vit_s_16": Entry("iecl.backbones.from_timm:vit_s_16", "384 features, 4.60 GMAC at 224 px, any size; timm"),
    "vit_b_16": Entry("iecl.backbones.from_torchvision:vit_b_16", "768 features, about 17.6 GMAC, 224 px only"),
}
