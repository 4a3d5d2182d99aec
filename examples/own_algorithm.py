"""A custom federated method, DGD with momentum, compared with DGD after equal tuning.

An algorithm is two methods, `init` and `step`, over a state of tensors. All agents are one batch,
and agents exchange information through `network.mix` only.

    python own_algorithm.py
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import fedsurf
from fedsurf.algorithms import DGD, State
from fedsurf.algorithms.algorithm import node_gradient, own_state
from fedsurf.algorithms.checks import check_fits
from fedsurf.evaluation.run import run_all
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.distribution import meta_tasks
from fedsurf.tasks.features import load_features

AGENTS, ROUNDS = 12, 30
STEP_SIZES = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True, kw_only=True)
class MomentumState(State):
    """The weights, and a velocity for each of them, `[rows, parameters]`."""

    velocity: Tensor


@dataclass(frozen=True)
class MomentumDGD:
    """Mix with the neighbours, step against the velocity: one round a step."""

    model: fedsurf.Model
    step_size: float
    momentum: float = 0.9
    batch_size: int = 10

    @property
    def name(self) -> str:
        """Name in tables and figures."""
        return "DGD with momentum"

    def init(
        self, task: fedsurf.Task, network: fedsurf.Network, streams: fedsurf.Streams
    ) -> MomentumState:
        """Draw W_0 and begin at rest."""
        check_fits(task, network, self.model)
        weights = fedsurf.Start().draw(self.model, streams, task.train.x)
        return MomentumState(weights=weights, velocity=torch.zeros_like(weights))

    def step(
        self,
        state: State,
        task: fedsurf.Task,
        network: fedsurf.Network,
        streams: fedsurf.Streams,
    ) -> MomentumState:
        """Return S·W − β v with v = momentum · v + ∇f(W), row by row."""
        state = own_state(state, MomentumState)
        batch = task.train.draw(self.batch_size, network.agent_rows(streams))
        gradient = node_gradient(self.model, network, state.weights, batch)
        velocity = self.momentum * state.velocity + gradient
        weights = network.mix(state.weights) - self.step_size * velocity
        return MomentumState(weights=weights, steps=state.steps + 1, velocity=velocity)


def main() -> None:
    """Tune both methods on validation tasks, then run them on test tasks."""
    features = load_features(FeatureConfig(source="digits", backbone="pca", components=16))
    config = fedsurf.TaskConfig(agents=AGENTS, train_examples=20, test_examples=5)
    tasks = meta_tasks(features, config)
    tuning = [tasks.validation.draw(fedsurf.generator(0, "tuning", task)) for task in range(2)]
    test = [tasks.test.draw(fedsurf.generator(0, "test", task)) for task in range(5)]
    network = fedsurf.make_network(fedsurf.NetworkConfig(), AGENTS, fedsurf.generator(0, "graph"))
    model = fedsurf.SoftmaxHead(tasks.train.features, tasks.train.classes)

    def runs(method: fedsurf.Algorithm, on: list[fedsurf.Task]) -> fedsurf.Trajectories:
        return run_all(method, on, network, ROUNDS)

    methods: list[Callable[[float], fedsurf.Algorithm]] = [
        lambda step_size: DGD(model, step_size, batch_size=10),
        lambda step_size: MomentumDGD(model, step_size),
    ]
    print(f"pooled accuracy after {ROUNDS} rounds on {len(test)} test tasks")
    for make in methods:
        step_size = max(
            STEP_SIZES,
            key=lambda size: float(runs(make(size), tuning).pooled_accuracy[:, -1].mean()),
        )
        method = make(step_size)
        last = runs(method, test).summary()[-1]
        print(
            f"{method.name:20} step {step_size:<5g} {100 * last['pooled_accuracy']:5.1f} % "
            f"± {100 * last['pooled_accuracy_error']:.1f}"
        )


if __name__ == "__main__":
    main()
