"""The graph filter of U-DGD: Σ_k h_k S^k W, K rounds of communication with learned taps."""

import torch
from torch import Tensor, nn

from fedsurf.network import Network


class GraphFilter(nn.Module):
    """A polynomial of the shift operator with `order + 1` learned taps h_0 … h_K.

    It starts as the plain mean of the K + 1 terms.
    """

    def __init__(self, order: int) -> None:
        super().__init__()
        if order < 0:
            raise ValueError(f"filter_order: got {order}, but it must be at least 0")
        self.order = order
        self.taps = nn.Parameter(torch.full((order + 1,), 1 / (order + 1)))

    def forward(self, weights: Tensor, network: Network) -> Tensor:
        """Filter `weights[nodes, parameters]`; takes `order` rounds.

        A server, node 0 of a star, keeps nothing of its own: its tap h_0 is left out.
        """
        shifted = weights
        own = self.taps[0] * weights
        if network.server:
            own = torch.cat([torch.zeros_like(own[:1]), own[1:]])
        filtered = own
        for tap in self.taps[1:]:
            shifted = network.mix(shifted)
            filtered = filtered + tap * shifted
        return filtered
