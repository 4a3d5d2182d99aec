"""A round with lost messages and absent agents, node by node and link by link, in plain numbers."""

import naive
import torch


def links_of(network, mask):
    """The links of a mask as a set of (from, to)."""
    if mask is None:
        return set()
    return {tuple(link) for link in network.links.T[mask].tolist()}


def naive_round(network, values, sent, losses, reporters=None):
    """Each node sums over itself and its neighbours, link by link, in plain numbers."""
    kept, renormalised = links_of(network, losses.kept), links_of(network, losses.renormalised)
    absent = set() if losses.absent is None else set(losses.absent.nonzero().flatten().tolist())
    mixed = []
    for i in range(network.nodes):
        if i in absent:
            mixed.append(values[i])
            continue
        own = naive.shift_entry(network.graph, i, i, network.shift)
        heard, missing = {}, 0.0
        for j in network.graph.neighbors(i):
            weight = naive.shift_entry(network.graph, i, j, network.shift)
            if i == 0 and reporters is not None:
                if j not in reporters:
                    continue
                weight *= network.agents / len(reporters)
            if (j, i) in kept:
                own += weight
            elif (j, i) in renormalised:
                missing += weight
            else:
                heard[j] = weight
        left = own + sum(heard.values())
        scale = (left + missing) / left if missing else 1.0
        total = [scale * own * value for value in values[i]]
        for j, weight in heard.items():
            total = [t + scale * weight * value for t, value in zip(total, sent[j], strict=True)]
        mixed.append(total)
    return torch.tensor(mixed, dtype=torch.float64)
