"""Learned federated optimizers: Stochastic Unrolled Federated Learning (SURF) and classical methods.

The names of `__init__.pyi` are the public face of the package; each is imported when it is first used,
because importing torch takes seconds. Everything else is imported from its room, such as
`fedsurf.algorithms` or `fedsurf.network`.

Examples
--------
>>> import fedsurf
>>> from sklearn.datasets import load_digits
>>> x, y = load_digits(return_X_y=True)
>>> model = fedsurf.FederatedClassifier(n_agents=30).fit(x, y)
>>> bool(model.score(x, y) > 0.95)
True
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("fedsurf")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
