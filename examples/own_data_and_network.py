"""Custom data, graph and model: two rings, a karate club and a hidden layer.

DGD trains a softmax layer and a network with one hidden layer over the same graph on the same tasks.
One ring lies inside the other, so that no straight line divides them and the hidden layer pays.

    python own_data_and_network.py
"""

import networkx as nx
from sklearn.datasets import make_circles
from torch import nn

import fedsurf
from fedsurf.algorithms import DGD
from fedsurf.evaluation.run import run_all
from fedsurf.tasks.config import FeatureConfig
from fedsurf.tasks.dataset import Dataset
from fedsurf.tasks.distribution import meta_tasks
from fedsurf.tasks.features import features_of

ROUNDS = 80


def main() -> None:
    """Train both models over the club, and print their accuracy."""
    x, y = make_circles(6000, noise=0.1, factor=0.4, random_state=0)
    dataset = Dataset.from_arrays(x, y, name="rings", test_fraction=0.3)
    features = features_of(dataset, FeatureConfig(backbone="none"))

    network = fedsurf.Network(nx.karate_club_graph(), shift="metropolis")
    config = fedsurf.TaskConfig(agents=network.agents, train_examples=20, test_examples=10)
    tasks = meta_tasks(features, config)
    test = [tasks.test.draw(fedsurf.generator(0, "test", task)) for task in range(2)]

    softmax = fedsurf.SoftmaxHead(tasks.test.features, tasks.test.classes)
    hidden = fedsurf.ModuleModel(
        nn.Sequential(nn.Linear(tasks.test.features, 16), nn.Tanh(), nn.Linear(16, 2))
    )
    print(f"{network.agents} agents, {ROUNDS} rounds, {len(test)} tasks")
    for name, model in (("softmax layer", softmax), ("one hidden layer", hidden)):
        method = DGD(model, step_size=1.0, start=fedsurf.Start(deviation=0.5))
        last = run_all(method, test, network, ROUNDS).summary()[-1]
        print(
            f"{name:16} {model.parameters:3} weights: "
            f"{100 * last['pooled_accuracy']:.1f} % ± {100 * last['pooled_accuracy_error']:.1f} "
            f"pooled, disagreement {last['disagreement']:.3f}, {last['floats']:,.0f} floats sent"
        )


if __name__ == "__main__":
    main()
