"""The pretrained optimizer on graphs where agents would oscillate between two sides, with and without laziness.

Where most links of a graph lead from one side to the other, the smallest eigenvalue of S is close to -1, and
learned memory amplifies oscillations. There agents are lazy: they keep a share of what
they sent (`unrolled.transferable.graph`). The table has the pooled accuracy in percent after 10, 20 and 40
rounds, mean ± standard error over draws of Gaussian classes (`odd_federations`), with agents that hold all
classes and with agents that hold one each: with lazy agents, and never lazy.

    python benchmarks/two_sides.py [--draws 5]
"""

import argparse

import networkx as nx
import torch
from odd_federations import OddCase

import fedsurf
from fedsurf import SoftmaxHead, generator
from fedsurf.common.statistics import standard_error
from fedsurf.common.threads import limit_threads
from fedsurf.evaluation.run import run
from fedsurf.network import Network
from fedsurf.unrolled.transferable import graph as layer_graph

GRAPHS = {
    "3-regular, 32 agents": nx.random_regular_graph(3, 32, seed=0),
    "torus, 4 by 6": nx.grid_2d_graph(4, 6, periodic=True),
    "hypercube, 32 agents": nx.hypercube_graph(5),
    "hypercube, 64 agents": nx.hypercube_graph(6),
    "two groups of 10": nx.complete_bipartite_graph(10, 10),
    "two groups of 30": nx.complete_bipartite_graph(30, 30),
}
"""The first one has no two sides."""
ROUNDS = (10, 20, 40)


@torch.no_grad()
def accuracy(graph: nx.Graph, rounds: int, draws: int, *, single_class: bool) -> str:
    case = OddCase(agents=len(graph), single_class=single_class)
    found = []
    for number in range(draws):
        task, _ = case(generator(0, "two-sides", number))
        network = Network(graph, "metropolis")
        algorithm = fedsurf.load().on(SoftmaxHead(task.features, task.classes), rounds)
        end = run(algorithm, task, network, algorithm.steps, record=(0, algorithm.steps))
        found.append(end.pooled_accuracy[-1])
    values = 100 * torch.tensor(found, dtype=torch.float64)
    return f"{values.mean():.1f} ± {standard_error(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    limit_threads(0)
    lazy = [f"{rounds} rounds" for rounds in ROUNDS]
    headings = ["graph", "lowest eigenvalue", "classes of an agent", *lazy]
    headings += [f"{one}, never lazy" for one in lazy]
    print(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
    usual = layer_graph.SWINGING_EIGENVALUE
    for name, one in GRAPHS.items():
        graph = nx.convert_node_labels_to_integers(one)
        lowest = Network(graph, "metropolis").facts.spectrum.lowest_eigenvalue
        for single in (False, True):
            cells = [name, f"{lowest:.2f}", "one" if single else "all"]
            for bound in (usual, -1.0):
                layer_graph.SWINGING_EIGENVALUE = bound
                cells += [
                    accuracy(graph, rounds, options.draws, single_class=single) for rounds in ROUNDS
                ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
