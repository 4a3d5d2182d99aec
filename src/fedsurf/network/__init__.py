"""Graphs, their shift operators, and the networks on which agents talk in counted rounds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
