from .loading import MODULE_NAMES as MODULE_NAMES
from .loading import NAMES as NAMES
from .loading import card as card
from .loading import digest as digest
from .loading import load as load
from .loading import load_for_modules as load_for_modules
