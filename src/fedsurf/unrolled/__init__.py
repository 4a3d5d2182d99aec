"""Unrolled optimizers: algorithms whose steps are layers with learned parameters."""

from fedsurf.unrolled.graph_filter import GraphFilter
from fedsurf.unrolled.perceptron import Activation, Perceptron, flatten_batch
from fedsurf.unrolled.transfer_state import TransferState
from fedsurf.unrolled.transferable import Transferable, TransferableConfig
from fedsurf.unrolled.transferable_algorithm import TransferableAlgorithm
from fedsurf.unrolled.udgd import UDGD, UDGDConfig, UDGDLayer

__all__ = [
    "UDGD",
    "Activation",
    "GraphFilter",
    "Perceptron",
    "TransferState",
    "Transferable",
    "TransferableAlgorithm",
    "TransferableConfig",
    "UDGDConfig",
    "UDGDLayer",
    "flatten_batch",
]
