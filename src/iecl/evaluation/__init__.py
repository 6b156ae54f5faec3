"""How good a backbone is, measured with fixed protocols: the table of evaluations."""

from iecl.registry import Entry

EVALUATIONS: dict[str, Entry] = {
    "knn": Entry("iecl.evaluation.knn:KNN", "weighted vote of the nearest training images: nothing is trained"),
    "linear": Entry("iecl.evaluation.linear:Linear", "a linear classifier on frozen features, trained with SGD"),
    "detection": Entry(
        "iecl.evaluation.detection:Detection", "VOC boxes: Faster R-CNN around the backbone, trained whole"
    ),
    "segmentation": Entry(
        "iecl.evaluation.segmentation:Segmentation", "VOC masks: DeepLab-v3 around the backbone, trained whole"
    ),
}
