"""Presets and studies as subcommands of the command line, with an option for every field."""

from typing import TYPE_CHECKING

import tyro

from fedsurf.evaluation.config import ExperimentConfig, StudyConfig
from fedsurf.evaluation.presets import PRESETS, STUDIES

if TYPE_CHECKING:
    Preset = ExperimentConfig
    AnyStudy = StudyConfig
else:
    Preset, AnyStudy = (
        tyro.extras.subcommand_type_from_defaults(
            {name: entry.config for name, entry in entries.items()},
            {name: entry.description for name, entry in entries.items()},
            prefix_names=False,
        )
        for entries in (PRESETS, STUDIES)
    )
