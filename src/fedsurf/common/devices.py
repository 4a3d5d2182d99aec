"""Devices by name, as command lines and functions take them."""

import torch

CPU = torch.device("cpu")
"""The host, where draws, calls and sizes are computed."""
DEVICE_HELP = "auto, cpu, cuda, cuda:1 or mps"


def device_named(name: str | torch.device) -> torch.device:
    """Return a device; "auto" is the first GPU that torch can use, or the CPU.

    Examples
    --------
    >>> device_named("cpu")
    device(type='cpu')
    """
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device: got {name!r}, which torch cannot use here, but it must be one of {DEVICE_HELP} "
            f"that this machine has ({str(error).splitlines()[0]})"
        ) from error
    return device
