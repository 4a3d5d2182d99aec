"""The transferable layer as plain loops over agents: matrices in double precision, explicit inverses.

Written from the equations in the docstrings, without batches of agents, Gram matrices or factors of
the curvature. The random directions of the sketch are the only thing that is taken from the layer.
"""

import math
from dataclasses import dataclass

import torch

LENGTHS = ("newton", "gradient", "damping", "decay", "floor", "reach", "again")
MIXING = ("correction", "keep", "stay", "memory")
LIMITS = {
    "correction": (0.35, 1.0),
    "keep": (0.35, 0.35),
    "stay": (0.7, 0.7),
    "memory": (0.7, 0.25),
}


@dataclass
class Estimate:
    classes: list
    bends: list
    scale: float
    varying: int
    examples: float
    description: list


def clamp(value, low, high):
    return max(low, min(high, value))


def bounded(value, below, above):
    return value / (1 + abs(value) / (below if value < 0 else above))


def data_sums(x, y, classes, centred):
    """Sum up one agent's data `x[m, p]`, pair by pair."""
    m, p = x.shape
    rows = x.tolist()
    dot = [[sum(a * b for a, b in zip(one, two, strict=True)) for two in rows] for one in rows]
    others = [(i, j) for i in range(m) for j in range(m) if i != j]
    alike = [(i, j) for i, j in others if y[i] == y[j]]
    return [
        *(float(y.count(c)) for c in range(classes)),
        float(m),
        sum(dot[i][i] for i in range(m)),
        float((m - centred) * p),
        sum(dot[i][j] for i, j in alike),
        float(len(alike)),
        sum(dot[i][j] ** 2 for i, j in others),
        float(len(others)),
    ]


def moments(raw, x, omega):
    """The sum of one agent's examples, and Σ x xᵀ Ω of them as it sees them, flat."""
    p = raw.shape[1]
    second = torch.zeros(p, p, dtype=torch.float64)
    for row in x:
        second += torch.outer(row, row)
    return [*raw.sum(0).tolist(), *(second @ omega).flatten().tolist()]


def spreads(raw):
    """One agent's examples, their sums, the squares about their means, and the means' squares, flat."""
    m, means = len(raw), raw.mean(0).tolist()
    columns = raw.T.tolist()
    squares = [
        sum((value - mean) ** 2 for value in column)
        for column, mean in zip(columns, means, strict=True)
    ]
    return [float(m), *(m * one for one in means), *squares, *(m * one**2 for one in means)]


def standards(found, features, agents=1):
    """The mean and the standard deviation of each feature; 1 where it is constant.

    Small deviations of a few rows, on average those of `agents`, are not trusted.
    """
    rows = [found[1 + k * features : 1 + (k + 1) * features] for k in range(3)]
    means, deviations, units = [], [], []
    for total, squares, squared_means in zip(*rows, strict=True):
        mean = total / found[0]
        between = squared_means / found[0] - mean**2
        rounding = 16 * torch.finfo(torch.float64).eps * mean**2
        variance = squares / found[0] + (between if between > rounding else 0.0)
        means.append(mean)
        deviations.append(math.sqrt(variance) if variance > 0 else 0.0)
    trust = clamp((agents * found[0] - 2) / 3, 0.0, 1.0)
    known = sorted(one for one in deviations if one > 0)
    for one in deviations:
        unit = 1.0
        if one > 0:
            middle = known[round((len(known) - 1) / 2)]
            unit = max(one, middle) if trust == 0 else one
            if trust > 0 and one < middle:
                unit = middle * (one / middle) ** trust
        units.append(unit)
    return [torch.tensor(values, dtype=torch.float64) for values in (means, units)]


def varying(sums, moment, omega, unit):
    """Count the features whose sketch is not zero, but for rounding; all if none is."""
    features, width = omega.shape
    count, own = sums[-7], max(0.0, sums[-6])
    found = 0
    for f in range(features):
        sketch = moment[features + f * width : features + (f + 1) * width]
        rounding = 32 * torch.finfo(torch.float64).eps * abs(moment[f] / count) / float(unit[f])
        found += max(abs(value) for value in sketch) > rounding * math.sqrt(count * own)
    return found or features


def estimate_of(sums, progress, features, agents, vary):
    per_class, scalars = sums[:-7], sums[-7:]
    mean, own, freedom, same, same_pairs, squares, pairs = scalars
    classes = len(per_class)
    energy = features * (own / freedom if freedom > 0 and own > 0 else 1.0)
    signal = same / same_pairs / energy if same_pairs > 0 else 0.0
    concentration = squares / pairs / energy**2 if pairs > 0 else 0.0
    dimension = -math.log(clamp(concentration, 1 / vary, 1.0))
    total = max(1.0, agents * mean)
    described = [
        (math.log(total) - dimension - math.log(classes)) / 2,
        (math.log(classes) - math.log(10)) / 1.5,
        (math.log(max(mean, 0.1)) - math.log(classes)) / 2,
        (dimension - 3) / 1.5,
        math.log(max(signal, 0.003)) / 2 + 1,
        math.log(max(signal, 0.0) * total / classes + 0.1) / 3,
        (math.log(vary) - dimension) / 2,
    ]
    smooth = [max(0.0, count) + 0.1 for count in per_class]
    return Estimate(
        classes=[count / sum(smooth) for count in smooth],
        bends=progress[:classes],
        scale=energy / vary,
        varying=vary,
        examples=mean,
        description=[clamp(value, -4, 4) for value in described] + progress[classes:],
    )


def second_moment(sketch, omega, scale, vary):
    """Return Nyström's approximation of A from Y = A Ω, with the rest of the trace in equal parts."""
    p, k = omega.shape
    if p == k:
        # While units change, averages need not be a second moment: negative values are cut.
        values, axes = torch.linalg.eigh((sketch + sketch.T) / 2)
        return axes @ torch.diag(values.clamp(min=0)) @ axes.T
    trace = vary * scale
    shift = 1e-5 * trace
    y = sketch + shift * omega
    core = omega.T @ y
    values, axes = torch.linalg.eigh((core + core.T) / 2)
    inverse = axes @ torch.diag(1 / values.clamp(min=shift / 10)) @ axes.T
    found, axes = torch.linalg.eigh(y @ inverse @ y.T)
    identity = torch.eye(p, dtype=torch.float64)
    leading = torch.zeros(p, p, dtype=torch.float64)
    onto = torch.zeros(p, p, dtype=torch.float64)
    total = 0.0
    for place in range(p - k, p):
        if found[place] > 1e-10 * found[-1]:
            value = max(0.0, float(found[place]) - shift)
            outer = torch.outer(axes[:, place], axes[:, place])
            leading, onto, total = leading + value * outer, onto + outer, total + value
    rest = clamp((trace - total) / max(1, vary - k), 1e-3 * scale, scale)
    return leading + rest * (identity - onto)


def perceptron(first, second, inputs):
    inputs = torch.tensor(inputs, dtype=torch.float64)
    hidden = torch.tanh(first.weight.double() @ inputs + first.bias.double())
    return (second.weight.double() @ hidden + second.bias.double()).tolist()


def schedule(step, steps, called):
    after, left = step / 3, (steps - 1 - step) / 3
    return [
        step / max(1, steps - 1) - 0.5,
        math.exp(-after),
        math.exp(-left),
        math.exp(-3 * after),
        math.exp(-3 * left),
        math.log(steps / 20),
        math.log(called / 20),
    ]


def softmax(row):
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


def chances(x, matrix, bias, offset=0.0):
    rows = (x @ matrix + bias + offset).tolist()
    return torch.tensor([softmax(row) for row in rows], dtype=torch.float64)


def local_step(
    x, labels, matrix, bias, curvature, controls, gate, offset, bends, scale, factor=1.0, less=None
):
    """One regularised Newton-like step of one agent, class by class."""
    (m, p), classes = x.shape, labels.shape[1]
    less = [1.0] * classes if less is None else less
    residual = (chances(x, matrix, bias, offset) - labels) / m
    decay = controls["decay"] * scale / classes
    identity = torch.eye(p, dtype=torch.float64)
    step, bias_step = torch.zeros_like(matrix), torch.zeros_like(bias)
    for c in range(classes):
        bend = (bends[c] + less[c] * controls["floor"] / classes) * classes / (classes - 1)
        damping = less[c] * controls["damping"] * scale / classes + decay
        inverse = torch.linalg.inv(bend * curvature + damping * identity)
        precondition = (
            controls["newton"] * inverse + classes * controls["gradient"] / scale * identity
        )
        step[:, c] = gate[c] * precondition @ (x.T @ residual[:, c] + decay * matrix[:, c])
        length = controls["newton"] / (bend + less[c] * controls["damping"] / classes)
        length += classes * controls["gradient"]
        bias_step[c] = gate[c] * length * residual[:, c].sum()
    moved = x @ step + bias_step
    mean_square = float((moved**2).sum()) / (m * classes)
    short = factor / math.sqrt(1 + mean_square / controls["reach"] ** 2)
    return matrix - short * step, bias - short * bias_step


def progress_of(before, after, labels, share, federation):
    m, classes = labels.shape
    unit = m * max(math.log(classes), 0.5)
    bends = [sum(p * (1 - p) for p in after[:, c].tolist()) / m for c in range(classes)]
    hits, losses = 0.0, {"before": 0.0, "after": 0.0}
    for e in range(m):
        label = int(labels[e].argmax())
        row = before[e].tolist()
        best = [c for c in range(classes) if max(row) <= row[c] * (1 + 1e-6)]
        hits += (label in best) / len(best)
        losses["before"] -= math.log(max(1e-6, row[label]))
        losses["after"] -= math.log(max(1e-6, float(after[e, label])))
    unusual = sum(s * math.log(s / f) for s, f in zip(share, federation, strict=True))
    values = [losses["before"] / unit - 0.5, hits / m - 0.5, losses["after"] / unit - 0.5, unusual]
    return bends + [clamp(value, -3, 3) for value in values]


def work(
    controller, when, raw, y, classes, centre, head, curvature, estimate, steps, share, ease_rare, chosen=None
):  # fmt: skip
    """Return the controls of mixing, V and the progress of one agent in a round, perhaps of chosen examples."""
    all_y, whole = y, len(y)
    if chosen is not None:
        raw, y = raw[chosen], [y[place] for place in chosen]
    m, p = raw.shape
    x = raw - centre
    labels = torch.zeros(m, classes, dtype=torch.float64)
    for e, label in enumerate(y):
        labels[e, label] = 1
    values = perceptron(
        controller.round_in,
        controller.round_out,
        [*when, *estimate.description, math.log(m / whole) / 2, math.log(share) / 3],
    )
    lengths = {name: math.exp(clamp(values[i], -12, 3)) for i, name in enumerate(LENGTHS)}
    mixing = {name: values[7 + i] for i, name in enumerate(MIXING)}
    context = values[11:]
    table = torch.tensor(head, dtype=torch.float64).reshape(p + 1, classes)
    matrix, bias = table[:-1], table[-1] + centre @ table[:-1]
    before = chances(x, matrix, bias)
    gate, offset, share = [], [], []
    for c in range(classes):
        known = estimate.classes[c]
        own = (all_y.count(c) + 5 * known) / (whole + 5)
        error = classes * float((before[:, c] - labels[:, c]).abs().sum()) / m
        about = [
            math.log(own) - math.log(known),
            min(4.0, classes * own - 1),
            math.log(classes * known),
            min(4.0, error - 1),
            clamp(math.log(whole / max(0.1, estimate.examples)), -3, 3),
        ]
        opening, weight = perceptron(controller.class_in, controller.class_out, about + context)
        gate.append(2 / (1 + math.exp(-opening)))
        offset.append(weight * about[0])
        share.append(own)
    offset = torch.tensor(offset, dtype=torch.float64)
    given = x, labels
    less = [1.0] * classes
    if ease_rare:
        even = 1 / classes * (1 - 1 / classes)
        divergence = sum(
            own * math.log(own / other) for own, other in zip(share, estimate.classes, strict=True)
        )
        less = [
            clamp((other * (1 - other) / even) ** 2, 0.02, 1.0) ** math.exp(-4 * divergence)
            for other in estimate.classes
        ]
    how = curvature, lengths, gate, offset, estimate.bends, estimate.scale
    matrix, bias = local_step(*given, matrix, bias, *how, less=less)
    after = chances(x, matrix, bias)
    for _ in range(steps - 1):
        matrix, bias = local_step(*given, matrix, bias, *how, lengths["again"], less)
    fitted = torch.cat([matrix, (bias - centre @ matrix)[None]]).flatten().tolist()
    return mixing, fitted, progress_of(before, after, labels, share, estimate.classes)


def no_progress(classes):
    return [(1 - 1 / classes) / classes] * classes + [0.0] * 4


def mean(rows):
    return plus(*((1 / len(rows), row) for row in rows))


def plus(*terms):
    """Sum up factor · row over (factor, row) pairs."""
    return [
        sum(factor * value for (factor, _), value in zip(terms, values, strict=True))
        for values in zip(*(row for _, row in terms), strict=True)
    ]


class Federation:
    """The agents' examples, raw; `data` holds the (features, label) pairs of every agent."""

    def __init__(
        self, data, classes, omega, *, ease_rare=False, weigh_agents=False, scaling="whole"
    ):
        self.ease_rare, self.scaled = ease_rare, scaling == "features"
        self.mass = [len(own) ** 0.5 if weigh_agents else 1.0 for own in data]
        self.raw = [torch.tensor([x for x, _ in own], dtype=torch.float64) for own in data]
        self.y = [[label for _, label in own] for own in data]
        self.classes, self.omega, self.agents = classes, omega, len(data)
        self.features = len(data[0][0][0])
        self.parameters = (self.features + 1) * classes
        one = torch.ones(self.features, dtype=torch.float64)
        self.spreads = [spreads(raw) for raw in self.raw]
        self.units = [one] * self.agents
        if self.scaled:
            self.units = [standards(own, self.features)[1] for own in self.spreads]

    def contribution(self, i, centre, *, centred):
        x = (self.raw[i] - centre) / self.units[i]
        sums = data_sums(x, self.y[i], self.classes, centred)
        return sums, moments(self.raw[i], x, self.omega)

    def work(self, i, controller, when, centre, head, curvature, estimate, steps, share, chosen):
        """Do one agent's local work, in its units; heads are raw."""
        unit = self.units[i]
        column = torch.cat([unit, torch.ones(1, dtype=torch.float64)])[:, None]
        table = torch.tensor(head, dtype=torch.float64).reshape(-1, self.classes)
        controls, fitted, progress = work(
            controller, when, self.raw[i] / unit, self.y[i], self.classes, centre / unit,
            (table * column).flatten().tolist(), curvature, estimate, steps, share, self.ease_rare, chosen,
        )  # fmt: skip
        table = torch.tensor(fitted, dtype=torch.float64).reshape(-1, self.classes)
        return controls, (table / column).flatten().tolist(), progress

    def centre(self, sums, moment):
        return torch.tensor(moment[: self.features], dtype=torch.float64) / sums[-7]

    def curvature(self, sums, moment, estimate):
        sketch = torch.tensor(moment[self.features :], dtype=torch.float64)
        sketch = sketch.reshape(self.omega.shape) / sums[-7]
        return second_moment(sketch, self.omega, estimate.scale, estimate.varying)

    def vary(self, i, sums, moment):
        return varying(sums, moment, self.omega, self.units[i])

    def estimate(self, sums, progress, vary):
        return estimate_of(sums, progress, self.features, self.agents, vary)

    def over_graph(self, controller, rounds, mix, hearing, batches=None):
        """Return every agent's head after the last round.

        `mix` takes and returns a row an agent; `hearing` is the number of agents that each hears, with itself;
        `batches` are the examples of each round and agent.
        """
        every = range(self.agents)
        centres = [raw.mean(0) for raw in self.raw]
        own = [self.contribution(i, centres[i], centred=True) for i in every]
        sums, moment = [own[i][0] for i in every], [own[i][1] for i in every]
        progress, summaries = [no_progress(self.classes)] * self.agents, self.spreads
        zero = [0.0] * self.parameters
        head, previous, fitted = ([zero] * self.agents for _ in range(3))
        vary = [self.vary(i, sums[i], moment[i]) for i in every]
        curvature = [
            self.curvature(sums[i], moment[i], self.estimate(sums[i], progress[i], vary[i]))
            for i in every
        ]
        for r in range(rounds):
            mixing, new, sent, seen = [], [], [], []
            for i in every:
                estimate = self.estimate(sums[i], progress[i], vary[i])
                controls, v, found = self.work(
                    i, controller, schedule(r, rounds, 20), centres[i], head[i], curvature[i],
                    estimate, 2, hearing[i] / self.agents, batches and batches[r][i],
                )  # fmt: skip
                controls = {name: bounded(controls[name], *LIMITS[name]) for name in MIXING}
                mixing.append(controls)
                new.append(v)
                seen.append(plus((0.5, found), (0.5, progress[i])))
                kappa = controls["correction"] if r else 0.0
                sent.append(plus((1, v), (kappa, head[i]), (-kappa, fitted[i])))
            mixed = mix([plus((self.mass[i], sent[i])) for i in every])
            masses = mix([[self.mass[i]] for i in every])
            mixed = [plus((1 / masses[i][0], mixed[i])) for i in every]
            following = []
            for i in every:
                keep, stay, memory = (mixing[i][name] for name in ("keep", "stay", "memory"))
                following.append(
                    plus(
                        (1 - keep - stay - memory, mixed[i]), (keep, sent[i]),
                        (stay, head[i]), (memory, previous[i]),
                    )
                )  # fmt: skip
            head, previous, fitted = following, head, new
            sums, progress = mix(sums), mix(seen)
            if r >= (4 if self.scaled else 3):
                continue
            moment, summaries = mix(moment), mix(summaries)
            for i in every:
                centres[i] = self.centre(sums[i], moment[i])
                if self.scaled:
                    agents = min(self.agents, 1 + (r + 1) * (hearing[i] - 1))
                    centres[i], self.units[i] = standards(summaries[i], self.features, agents)
                again = self.contribution(i, centres[i], centred=False)
                sums[i] = plus((1, sums[i]), (1, again[0]), (-1, own[i][0]))
                moment[i] = plus((1, moment[i]), (1, again[1]), (-1, own[i][1]))
                own[i] = again
                vary[i] = self.vary(i, sums[i], moment[i])
                estimate = self.estimate(sums[i], progress[i], vary[i])
                curvature[i] = self.curvature(sums[i], moment[i], estimate)
        return head

    def through_server(self, controller, rounds, calls, batches=None):
        """Return the head that a server holds in the end.

        `calls` are the agents of each round, `batches` the examples of each round and such agent.
        """
        zero = [0.0] * self.parameters
        average, head, previous = zero, zero, zero
        sums = moment = None
        progress = no_progress(self.classes)
        reports, pool = 0, [0.0] * (1 + 3 * self.features)
        for r, called in enumerate(calls):
            mixing, heads, summaries, seen = [], [], [], []
            for place, i in enumerate(called):
                if reports:
                    centre = self.centre(sums, moment)
                    own = self.contribution(i, centre, centred=False)
                    known = sums, moment
                else:
                    centre = self.raw[i].mean(0)
                    own = known = self.contribution(i, centre, centred=True)
                estimate = self.estimate(known[0], progress, self.vary(i, *known))
                controls, v, found = self.work(
                    i, controller, schedule(r, rounds, len(called)), centre, head,
                    self.curvature(*known, estimate), estimate, 4, len(called) / self.agents,
                    batches and batches[r][place],
                )  # fmt: skip
                mixing.append(controls)
                heads.append(v)
                summaries.append(own)
                seen.append(found)

            keep, stay, memory = (
                sum(bounded(controls[name], 1.0, 1.0) for controls in mixing) / len(called)
                for name in ("keep", "stay", "memory")
            )
            if stay + memory > 0.9:
                stay, memory = 0.9 * stay / (stay + memory), 0.9 * memory / (stay + memory)
            mass = [self.mass[i] for i in called]
            new = plus(*((one / sum(mass), v) for one, v in zip(mass, heads, strict=True)))
            following = plus((1 - stay - memory, new), (stay, head), (memory, previous))
            head, previous = following, head
            average = plus((1 - keep, head), (keep, average))
            new_sums, new_moment = (
                mean([own[0] for own in summaries]),
                mean([own[1] for own in summaries]),
            )
            if reports:
                share = len(called) / (reports + len(called))
                sums = plus((1 - share, sums), (share, new_sums))
                moment = plus((1 - share, moment), (share, new_moment))
                progress = plus((0.5, mean(seen)), (0.5, progress))
            else:
                sums, moment, progress = new_sums, new_moment, mean(seen)
            if self.scaled and r <= 4:
                # Sums that depend on units are those of this round, for as many examples as on average.
                counts, raw = self.classes + 1, self.features
                each = sums[-7] / new_sums[-7]
                sums = sums[:counts] + new_sums[counts:]
                moment = moment[:raw] + [each * one for one in new_moment[raw:]]
            if self.scaled and r < 4:
                pool = plus(*((1, row) for row in [pool, *(self.spreads[i] for i in called)]))
                self.units = [standards(pool, self.features)[1]] * self.agents
            reports += len(called)
        return average
