"""The pretrained optimizer of modules against tuned classical methods, on networks with a hidden layer.

Every method gets the same tasks, the same W_0 (the same random weights at all agents), the same graph
and the same metric: the accuracy of all agents on the pooled test examples. DFedAvgM and gradient
tracking are tuned for each number of rounds, by the final accuracy of 12 settings on validation tasks.

    python benchmarks/hidden_layers.py mnist digits [--tasks 10] [--rounds 20 200] [--optimizer FILE]
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

import fedsurf
from fedsurf.algorithms import Algorithm, Centralised, SharedStart
from fedsurf.common.statistics import standard_error
from fedsurf.evaluation.methods import Method, Settings, method_named
from fedsurf.evaluation.run import Trajectories, run_all
from fedsurf.evaluation.tuning import settings_that_fit
from fedsurf.models import ModuleModel
from fedsurf.network import Network
from fedsurf.tasks.task import Task

STRENGTHS = (1e-3, 3e-3, 1e-2)
"""Penalties of centralised training, among which validation chooses."""
CENTRAL_ITERATIONS = 300
START = SharedStart()
Comparison = tuple[ModuleModel, list[Task], list[Task], Network]
"""The model, the validation tasks, the meta-test tasks and the network."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "studies", nargs="*", default=["digits"], help="studies of `fedsurf compare`, on a graph"
    )
    parser.add_argument("--tasks", type=int, default=10, help="meta-test tasks")
    parser.add_argument(
        "--agents", type=int, default=30, help="at most, where the data allows more"
    )
    parser.add_argument("--partition", help="class-imbalanced or dirichlet")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32], help="units by layer")
    parser.add_argument("--activation", default="ReLU", help="a class of torch.nn")
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 20], help="learned rounds")
    parser.add_argument("--rounds", type=int, nargs="*", default=[20, 200], help="classical rounds")
    parser.add_argument("--trials", type=int, default=12, help="settings tried of each method")
    parser.add_argument("--tuning-tasks", type=int, default=2)
    parser.add_argument("--optimizer", default="module", help="a name, or a .safetensors file")
    parser.add_argument("--no-centralised", action="store_true")
    return parser.parse_args()


def network_of(features: int, hidden: Sequence[int], classes: int, activation: str) -> ModuleModel:
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(features, units, device="meta"), getattr(nn, activation)()]
        features = units
    return ModuleModel(nn.Sequential(*layers, nn.Linear(features, classes, device="meta")))


def prepare(name: str, options: argparse.Namespace) -> Comparison:
    config = fedsurf.STUDIES[name].config
    partition = options.partition or config.task.partition
    agents = min(options.agents, config.task.agents)
    task = replace(config.task, agents=agents, partition=partition)
    study = fedsurf.Study(replace(config, tasks=options.tasks, task=task))
    head = study.model
    model = network_of(head.features, options.hidden, head.classes, options.activation)
    return model, study.tuning_tasks(options.tuning_tasks), study.test_tasks(0), study.network(0)


def final(runs: Trajectories) -> Tensor:
    """Return the pooled accuracy at the end of each run; one that diverged is right about nothing."""
    return runs.pooled_accuracy[:, -1].double().nan_to_num(0.0)


def tuned(method: Method, given: Comparison, rounds: int, trials: int) -> Settings:
    model, validation, _, network = given
    best, best_score = dict(method.defaults), -1.0
    for number in range(trials):
        settings = dict(method.defaults)
        if number:
            settings |= method.draw(fedsurf.generator(0, "tune", method.name, number))
        settings = settings_that_fit(method, settings, validation)
        algorithm = method.make(model, START, settings)
        score = final(run_all(algorithm, validation, network, rounds, record=(rounds,))).mean()
        if float(score) > best_score:
            best, best_score = settings, float(score)
    return best


def row(name: str, rounds: str, accuracy: Tensor, floats: str, note: str = "") -> None:
    error = standard_error(accuracy)
    cells = [name, rounds, f"{100 * accuracy.mean():.1f} ± {100 * error:.1f}", floats, note]
    print("| " + " | ".join(cells) + " |", flush=True)


def compare(algorithm: Algorithm, steps: int, given: Comparison, note: str = "") -> Tensor:
    _, _, tasks, network = given
    runs = run_all(algorithm, tasks, network, steps, record=(steps,))
    accuracy, rounds = final(runs), int(runs.rounds[0, -1])
    floats = float(runs.floats[:, -1].double().mean()) / network.links.shape[1]
    row(algorithm.name, str(rounds), accuracy, f"{floats:,.0f}", note)
    return accuracy


def centralised(given: Comparison) -> None:
    model, validation, tasks, _ = given
    candidates = [Centralised(one, CENTRAL_ITERATIONS) for one in STRENGTHS]
    best = max(candidates, key=lambda one: sum(one.accuracy(task, model) for task in validation))
    accuracy = torch.tensor([best.accuracy(task, model) for task in tasks], dtype=torch.float64)
    row("centralised", "", accuracy, "", f"penalty {best.strength:g}")


def main() -> None:
    options = arguments()
    optimizer = fedsurf.load_for_modules(options.optimizer)
    for name in options.studies:
        begin = time.perf_counter()
        given = prepare(name, options)
        model, _, tasks, network = given
        print(
            f"\n{name}: {network.agents} agents, {tasks[0].train.x.shape[1]} examples each, "
            f"{model.parameters} weights, {options.activation}, hidden {options.hidden}, "
            f"{len(tasks)} tasks\n\n| method | rounds | accuracy | floats a link | settings |\n"
            "| --- | --- | --- | --- | --- |"
        )
        gains = {}
        if not options.no_centralised:
            centralised(given)
        for depth in options.depths:
            algorithm = optimizer.on(model, depth, START)
            learned = compare(algorithm, algorithm.steps, given)
        for rounds in options.rounds:
            for method in (method_named("dfedavgm"), method_named("gradient-tracking")):
                settings = tuned(method, given, rounds, options.trials)
                note = ", ".join(f"{key} {value}" for key, value in settings.items())
                other = compare(method.make(model, START, settings), rounds, given, note)
                gains[f"{method.title}, {rounds} rounds"] = learned - other
        print(f"\nSURF-G with {options.depths[-1]} rounds, task by task, is better than")
        for other_name, gain in gains.items():
            print(f"- {other_name}: {100 * gain.mean():.1f} ± {100 * standard_error(gain):.1f}")
        print(f"({time.perf_counter() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
