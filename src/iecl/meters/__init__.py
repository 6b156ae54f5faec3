"""What a run can know about itself without labels: tensors in, numbers out."""
