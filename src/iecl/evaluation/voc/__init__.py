"""Transfer to PASCAL VOC: a pretrained ResNet inside a detector or segmenter, trained on and measured as VOC does."""
