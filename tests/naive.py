"""The formulas in plain Python, agent by agent and number by number, in double precision."""

import math


def scores(row, x, classes):
    """Score one example with flat weights `[features + 1, classes]`, the bias in the last row."""
    bias = row[len(x) * classes :]
    return [
        bias[c] + sum(x[p] * row[p * classes + c] for p in range(len(x))) for c in range(classes)
    ]


def probabilities(row, x, classes):
    found = scores(row, x, classes)
    largest = max(found)
    powers = [math.exp(score - largest) for score in found]
    return [power / sum(powers) for power in powers]


def loss(row, examples, classes):
    """Mean cross-entropy of one agent over its (features, label) pairs."""
    return sum(-math.log(probabilities(row, x, classes)[y]) for x, y in examples) / len(examples)


def gradient(row, examples, classes):
    """Gradient of one agent's mean cross-entropy, flat as the weights."""
    total = [0.0] * len(row)
    for x, y in examples:
        chance = probabilities(row, x, classes)
        for c in range(classes):
            residual = chance[c] - (1.0 if c == y else 0.0)
            for p, value in enumerate([*x, 1.0]):
                total[p * classes + c] += value * residual
    return [value / len(examples) for value in total]


def accuracy(row, examples, classes):
    """Share of (features, label) pairs whose label has the highest score, the first one if tied."""
    hits = 0
    for x, y in examples:
        found = scores(row, x, classes)
        hits += found.index(max(found)) == y
    return hits / len(examples)


def shift_entry(graph, i, j, shift):
    """Return S_ij of a networkx graph whose nodes are 0, 1, …"""
    degree = {node: len(list(graph.neighbors(node))) for node in graph}
    linked = graph.has_edge(i, j)
    if shift == "adjacency":
        return 1 / (degree[i] + 1) if linked or i == j else 0.0
    if shift == "metropolis":
        if i != j:
            return 1 / (1 + max(degree[i], degree[j])) if linked else 0.0
        return 1 - sum(1 / (1 + max(degree[i], degree[k])) for k in graph.neighbors(i))
    if shift == "laplacian":
        if i == j:
            return 1.0 if degree[i] else 0.0
        return -1 / math.sqrt(degree[i] * degree[j]) if linked else 0.0
    raise AssertionError(shift)


def mix(graph, rows, shift):
    """S·W, each agent summing over itself and its neighbours."""
    mixed = []
    for i in sorted(graph):
        total = [0.0] * len(rows[i])
        for j in {i, *graph.neighbors(i)}:
            entry = shift_entry(graph, i, j, shift)
            for place, value in enumerate(rows[j]):
                total[place] += entry * value
        mixed.append(total)
    return mixed
