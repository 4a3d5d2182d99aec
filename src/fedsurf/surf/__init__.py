"""SURF: the primal-dual meta-training of unrolled optimizers, under descending constraints."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
