"""Arrays of the host on the device, without a wait for what runs there."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """On a GPU out of pinned memory, which torch keeps until the copy is done: from other memory a
    copy waits for all that was started before it.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
