"""Devices by name, as command lines and functions take them."""

import torch

CPU = torch.device("cpu")
"""The host, where draws, calls and sizes are computed."""
DEVICES = "auto, cpu, cuda, cuda:1 or mps"


def device_named(name: str | torch.device) -> torch.device:
    """Return a device; "auto" is the first CUDA device where torch can use one, or the CPU.

    It is never "mps", which lacks double precision: the pretrained optimizer needs that.

    Examples
    --------
    >>> device_named("cpu")
    device(type='cpu')
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda:0") if torch.cuda.is_available() else CPU
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device: got {name!r}, which torch cannot use here, but it must be one of {DEVICES}"
        ) from error
