"""Pretrained optimizers: their weights, cards and configuration, and loading; `recipes` made the weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
