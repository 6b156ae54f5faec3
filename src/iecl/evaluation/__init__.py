"""How good a backbone is, measured with fixed protocols: the table of evaluations."""

from iecl.registry import Entry

EVALUATIONS: dict[str, Entry] = {
    "knn": Entry("iecl.evaluation.knn:KNN", "vote of the nearest training images: nothing is trained"),
    "linear": Entry("iecl.evaluation.linear:Linear", "a linear classifier on frozen features, trained with SGD"),
    "fewshot": Entry("iecl.evaluation.fewshot:FewShot", "logistic regression on features of 1 %, 10 % or a few labels"),
    "finetune": Entry("iecl.evaluation.finetune:FineTune", "the whole network with a fresh head, trained with labels"),
    "detection": Entry(
        "iecl.evaluation.detection:Detection", "VOC boxes: Faster R-CNN around the backbone, trained whole"
    ),
    "segmentation": Entry(
        "iecl.evaluation.segmentation:Segmentation", "VOC masks: DeepLab-v3 around the backbone, trained whole"
    ),
}
