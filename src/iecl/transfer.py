"""Copies from this process's memory to its device that nobody waits for."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, which fetches it while it still works on something else.

    From ordinary memory the copy would wait for that work, and this process with it.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
