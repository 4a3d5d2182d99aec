"""Configuration of the recipes of pretrained optimizers: plain data that command lines read without torch."""

from dataclasses import dataclass, replace

from fedsurf.surf.config import DescentConfig, SurfConfig
from fedsurf.unrolled.config import GradientTransferConfig, TransferableConfig

WEIGHTS_FILE = "optimizer.safetensors"
"""The file in a run's folder that `fedsurf.load` and `fedsurf.load_for_modules` read."""
MAX_FEW_AGENTS = 10
"""Agents of the largest federation in the share of problems with few agents."""


@dataclass(frozen=True)
class WideConfig:
    """Distribution of problems on which pretrained optimizers are meta-trained."""

    #: Share of the problems with real images.
    real_share: float = 0.4
    #: Share of the synthetic problems whose classes are round Gaussians.
    gaussian_share: float = 0.15
    #: Share of the synthetic problems with two classes, in addition to those drawn with two.
    two_share: float = 0.1
    #: Share of the problems with a server.
    server_share: float = 0.4
    #: Share of the problems with a faulty network.
    fault_share: float = 0.3
    #: Share of the problems with 2 to 10 agents.
    few_share: float = 0.2
    #: Share of the problems whose agents fit their heads to mini-batches.
    batch_share: float = 0.0
    #: Share of the problems whose agents hold about the same labels.
    even_share: float = 0.0
    #: Share of the problems with rare classes.
    rare_share: float = 0.0
    #: Number of random views of the real images.
    views: int = 6
    #: Largest number of agents, at least 10.
    max_agents: int = 100
    #: Largest number of training examples of a federation, at least twice `max_agents`.
    max_examples: int = 5000
    #: Approximate number of test examples of a federation.
    test_examples: int = 512


@dataclass(frozen=True)
class ConfidenceConfig:
    """Training of an optimizer's confidence, which scales the logits of heads."""

    #: Number of problems that it learns from.
    problems: int = 3000
    #: Share of these with rare classes, which meta-training lacks.
    rare_share: float = 0.3
    #: Steps of Adam, each on the observations of all problems.
    steps: int = 1500
    #: Learning rate of the first step; it falls to zero.
    learning_rate: float = 1e-2
    #: Weight decay of Adam.
    weight_decay: float = 0.1
    #: Noise that every step adds to inputs that agents did not measure, relative to their spread.
    #: Without it confidence relies on small differences, and is too high on unfamiliar data.
    jitter: float = 0.4


_HEADS_OPTIMIZER = TransferableConfig(confidence_width=32)
_HEADS_PROBLEMS = WideConfig(
    gaussian_share=0.2,
    two_share=0.15,
    server_share=0.5,
    few_share=0.25,
    batch_share=0.1,
    even_share=0.2,
)
_HEADS_SURF = SurfConfig(
    steps=3000,
    learning_rate=2e-2,
    final_learning_rate=3e-3,
    second_moment_decay=0.99,
    dual_rate=1e-2,
    penalty=0.1,
    descent=DescentConfig(
        epsilon=0.01, gradient_of="average", gradient_examples="all", form="log-ratio"
    ),
    loss_on="pooled",
    calibrated_share=0.8,
    calibration_examples=256,
    relative_loss=True,
    clip=0.3,
    skip_above=3.0,
    averaging=0.99,
    weighting="examples",
    validate_every=250,
    validation_tasks=40,
    select_by="last",
)
_MODULES_OPTIMIZER = GradientTransferConfig()
_MODULES_PROBLEMS = WideConfig(
    server_share=0.0, fault_share=0.15, views=4, max_agents=30, max_examples=1200, test_examples=300
)
_MODULES_SURF = replace(
    _HEADS_SURF,
    steps=300,
    learning_rate=1e-2,
    final_learning_rate=2e-4,
    averaging=0.0,
    select_by="accuracy",
    calibrated_share=0.5,
    calibration_examples=512,
    validate_every=100,
    validation_tasks=16,
)


@dataclass(frozen=True)
class PretrainConfig:
    """Everything that the pretrained optimizer of softmax heads depends on."""

    #: Shape of the optimizer.
    optimizer: TransferableConfig = _HEADS_OPTIMIZER
    #: Distribution of problems.
    problems: WideConfig = _HEADS_PROBLEMS
    #: Meta-training.
    surf: SurfConfig = _HEADS_SURF
    #: Training of confidence, after meta-training.
    confidence: ConfidenceConfig = ConfidenceConfig()
    #: Seed of everything random; that of the shipped weights is 1.
    seed: int = 1


@dataclass(frozen=True)
class ModulePretrainConfig:
    """Everything that the pretrained optimizer of modules depends on."""

    #: Shape of the optimizer.
    optimizer: GradientTransferConfig = _MODULES_OPTIMIZER
    #: Distribution of problems.
    problems: WideConfig = _MODULES_PROBLEMS
    #: Meta-training.
    surf: SurfConfig = _MODULES_SURF
    #: Seed of everything random.
    seed: int = 0
