"""Federated optimization methods, one a file, all on the one `Algorithm` interface."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
