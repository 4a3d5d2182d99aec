from .config import DescentConfig as DescentConfig
from .config import SurfConfig as SurfConfig
from .constraints import slack as slack
from .constraints import unroll as unroll
from .loop import RunFolder as RunFolder
from .loop import meta_train as meta_train
from .training import FixedProblems as FixedProblems
from .training import MetaTraining as MetaTraining
