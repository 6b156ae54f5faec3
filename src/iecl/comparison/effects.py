"""How far details of a protocol are known to move a number, in points, with the source of each figure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """What a difference in one detail may do."""

    words: str
    source: str


EFFECTS: dict[str, dict[str, Effect]] = {
    "knn": {
        "k": Effect("1.0 point from k = 10 to 200 with 1 % of ImageNet's labels", "facebookresearch/dino#121"),
        "weights": Effect("cosine and plain votes differ by some tenths of a point", "estimate"),
        "temperature": Effect("below 0.5 points; matters with k = 200", "estimate"),
        "features": Effect("raw dot products lost to cosine and L2 in every report", "facebookresearch/dino#62"),
    },
    "linear": {
        "lr": Effect(
            "38 points after one epoch when a ViT's learning rate is used for a ResNet (30 against 68 %)",
            "facebookresearch/dino#131",
        ),
        "lrs": Effect("a sweep finds what a fixed learning rate misses: see lr", "facebookresearch/dino#131"),
        "mode": Effect(
            "fresh crops against features made once: 0.5 to 2 points, and 91.9 % needed an augmented read-out",
            "estimate; p3i0t/SimCLR-CIFAR10#8",
        ),
        "crops": Effect("a few crops that are kept say what fresh ones say, within a point", "benchmarks/linear.py"),
        "weight_decay": Effect("below a point with many images, more with few", "estimate"),
        "normalize": Effect("up to 14 points for features of very different scales", "pengzhiliang/MAE-pytorch#65"),
        "epochs": Effect("a probe that has not converged may lack points", "estimate"),
        "batch_size": Effect("below 0.3 points if the learning rate follows the batch", "estimate"),
    },
    "any": {
        "image_size": Effect("another size of view is another task for the network", "estimate"),
        "crop_share": Effect("up to 0.5 points", "estimate"),
        "interpolation": Effect(
            "0.8 points for a fixed ResNet-18 (68.93 against 69.75)", "shift-happens-benchmark/icml-2022#62"
        ),
        "batch_norm": Effect("training mode while probing silently changes features", "facebookresearch/mae#54"),
        "test_split": Effect("other test images: the numbers are not of one task", "by definition"),
        "data": Effect("other images: the numbers are not of one task", "by definition"),
        "checkpoint": Effect("the best of all epochs on the test set is 0.2 to 1 point above the last", "estimate"),
        "n_train": Effect("another amount of labels is another task", "by definition"),
        "mean": Effect("fatal if it is not what the network was trained with", "anchors of several projects"),
    },
    "detection": {
        "neck": Effect("C4 and FPN are different tables and are never compared", "facebookresearch/moco, detection"),
        "voc_metrics": Effect("73.97 against 80.93 for one detector", "Vastlab/Elephant-of-object-detection#6"),
        "batch_norm": Effect("35.5 against 37.5 COCO AP without statistics over devices", "WXinlong/DenseCL#7"),
    },
    "segmentation": {
        "output_stride": Effect("stride and head reverse rankings", "WXinlong/DenseCL#3"),
        "data": Effect("46.9 against 69.4 mIoU without the augmented training list", "WXinlong/DenseCL#19"),
    },
}


def effect_of(evaluation: str, detail: str) -> Effect | None:
    """What is known of a detail of an evaluation.

    >>> effect_of("knn", "k").source
    'facebookresearch/dino#121'
    """
    return EFFECTS.get(evaluation, {}).get(detail) or EFFECTS["any"].get(detail)
