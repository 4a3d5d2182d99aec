"""Presets and studies as subcommands of the command line, with an option for every field."""

from typing import TYPE_CHECKING

import tyro

from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.evaluation.presets import PRESETS, STUDIES

if TYPE_CHECKING:
    Preset = ExperimentConfig
    AnyStudy = StudyConfig
else:
    Preset = tyro.extras.subcommand_type_from_defaults(
        {name: entry.config for name, entry in PRESETS.items()},
        {name: entry.description for name, entry in PRESETS.items()},
        prefix_names=False,
    )
    AnyStudy = tyro.extras.subcommand_type_from_defaults(
        {name: entry.config for name, entry in STUDIES.items()},
        {name: entry.description for name, entry in STUDIES.items()},
        prefix_names=False,
    )
