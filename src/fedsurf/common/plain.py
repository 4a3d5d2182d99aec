"""Content for JSON, which has no word for infinity and for what is no number."""

import json
import math
from typing import Any

import numpy as np


def plain(content: Any) -> Any:
    """Replace infinity and NaN by None, tuples by lists, and NumPy's numbers by Python's."""
    if isinstance(content, dict):
        return {name: plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]
    if isinstance(content, np.floating):  # the item of a longdouble is one, too
        return plain(float(content))
    if isinstance(content, np.generic):
        return plain(content.item())
    return None if isinstance(content, float) and not math.isfinite(content) else content


def json_text(content: Any, indent: int | None = None) -> str:
    """Return content as JSON; infinity and NaN become null."""
    return json.dumps(plain(content), indent=indent, allow_nan=False)
