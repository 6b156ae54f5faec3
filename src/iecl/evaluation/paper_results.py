"""What the IE-CL paper prints for protocols that can be run here, to be shown beside what was measured."""

VOC: dict[str, dict[str, float]] = {
    "supervised": {"segmentation": 0.7691, "detection": 0.7376},
    "random": {"segmentation": 0.3835, "detection": 0.4090},
    "simclr": {"segmentation": 0.7674, "detection": 0.7317},
    "moco-v2": {"segmentation": 0.7732, "detection": 0.7392},
    "simsiam": {"segmentation": 0.7709, "detection": 0.7345},
    "ie-cl": {"segmentation": 0.7812, "detection": 0.7441},
}
"""Its table 2b: VOC 2012, ResNet-50 pretrained on ImageNet; mIoU and mAP by method."""


def printed(evaluation: str, method: str) -> float | None:
    """The paper's number for a method under an evaluation, if it has one.

    >>> printed("segmentation", "ie-cl"), printed("knn", "ie-cl")
    (0.7812, None)
    """
    return VOC.get(method, {}).get(evaluation)
