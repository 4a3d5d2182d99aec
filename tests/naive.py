"""The formulas in plain Python, agent by agent and number by number, in double precision."""

import math

import torch


def scores(row, x, classes):
    """Score one example with flat weights `[features + 1, classes]`, the bias in the last row."""
    bias = row[len(x) * classes :]
    return [
        bias[c] + sum(x[p] * row[p * classes + c] for p in range(len(x))) for c in range(classes)
    ]


def probabilities(row, x, classes):
    """Return the softmax of one example's scores."""
    found = scores(row, x, classes)
    largest = max(found)
    powers = [math.exp(score - largest) for score in found]
    return [power / sum(powers) for power in powers]


def loss(row, examples, classes):
    """Return the mean cross-entropy of one agent over its (features, label) pairs."""
    return sum(-math.log(probabilities(row, x, classes)[y]) for x, y in examples) / len(examples)


def gradient(row, examples, classes):
    """Return the gradient of one agent's mean cross-entropy, flat as the weights."""
    total = [0.0] * len(row)
    for x, y in examples:
        chance = probabilities(row, x, classes)
        for c in range(classes):
            residual = chance[c] - (1.0 if c == y else 0.0)
            for p, value in enumerate([*x, 1.0]):
                total[p * classes + c] += value * residual
    return [value / len(examples) for value in total]


def accuracy(row, examples, classes):
    """Return the share of (features, label) pairs whose label has the (first) highest score."""
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
    """Return S·W, each node summing over itself and its neighbours."""
    mixed = []
    for i in sorted(graph):
        total = [0.0] * len(rows[i])
        for j in {i, *graph.neighbors(i)}:
            entry = shift_entry(graph, i, j, shift)
            for place, value in enumerate(rows[j]):
                total[place] += entry * value
        mixed.append(total)
    return mixed


def links_of(network, mask):
    """Return the links of a mask as a set of (from, to)."""
    return set() if mask is None else {tuple(link) for link in network.links.T[mask].tolist()}


def mix_with_losses(network, values, sent, lost, reporters=None):
    """Return what nodes make of the messages of a round, of which some are lost, link by link."""
    kept, renormalised = links_of(network, lost.kept), links_of(network, lost.renormalised)
    absent = [] if lost.absent is None else lost.absent.nonzero().flatten().tolist()
    mixed = []
    for i in range(network.nodes):
        if i in absent:
            mixed.append(values[i])
            continue
        own = shift_entry(network.graph, i, i, network.shift)
        received, missing = {}, 0.0
        for j in network.graph.neighbors(i):
            weight = shift_entry(network.graph, i, j, network.shift)
            if i == 0 and reporters is not None:
                if j not in reporters:
                    continue
                weight *= network.agents / len(reporters)
            if (j, i) in kept:
                own += weight
            elif (j, i) in renormalised:
                missing += weight
            else:
                received[j] = weight
        left = own + sum(received.values())
        scale = (left + missing) / left if missing else 1.0
        total = [scale * own * value for value in values[i]]
        for j, weight in received.items():
            total = [t + scale * weight * value for t, value in zip(total, sent[j], strict=True)]
        mixed.append(total)
    return torch.tensor(mixed, dtype=torch.float64)
