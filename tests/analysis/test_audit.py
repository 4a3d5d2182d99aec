"""Audits: interventions, the rule of the verdict, and audits of real optimizers."""

import json
import sys
from dataclasses import replace

import experiments
import naive
import pytest
import random_data
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsurf import Experiment, Study, StudyConfig, audit, load
from fedsurf.algorithms import DGD
from fedsurf.algorithms.algorithm import Start, State
from fedsurf.algorithms.centralised import Centralised
from fedsurf.analysis.interventions import (
    blank_features,
    chance,
    rename_labels,
    rotate_features,
    shuffle_labels,
)
from fedsurf.analysis.subject import Subject
from fedsurf.analysis.verdict import judge
from fedsurf.cli.main import run
from fedsurf.evaluation.study import Environment
from fedsurf.network import GraphConfig, NetworkConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.tasks.features import Features
from fedsurf.tasks.task import Examples, Task

AUDIT = sys.modules["fedsurf.analysis.audit"]
SEEDS = st.integers(0, 10_000)
STUDY = StudyConfig(
    data=FeatureConfig(source="given"),
    task=TaskConfig(agents=8, train_examples=20, test_examples=5),
    network=NetworkConfig(shift="metropolis"),
    tasks=4,
)


def labels(part):
    return sorted(y for agent in random_data.real_examples(part) for _, y in agent)


def padding_is_zero(part):
    return part.mask is None or not (part.x[~part.mask].any() or part.y[~part.mask].any())


class TestInterventions:
    @given(SEEDS, st.booleans())
    def test_blanking_leaves_only_the_labels(self, seed, masked):
        task = random_data.task(seed, masked=masked)
        blank = blank_features(task, random_data.seeded(seed))
        assert not blank.train.x.any()
        assert torch.equal(blank.train.y, task.train.y)
        assert blank.train.mask is task.train.mask
        assert blank.test is task.test

    @given(SEEDS, st.booleans())
    def test_shuffling_keeps_the_features_and_how_often_each_label_occurs(self, seed, masked):
        task = random_data.task(seed, masked=masked)
        shuffled = shuffle_labels(task, random_data.seeded(seed))
        assert torch.equal(shuffled.train.x, task.train.x)
        assert labels(shuffled.train) == labels(task.train)
        assert padding_is_zero(shuffled.train)
        assert shuffled.test is task.test

    def test_shuffling_moves_labels_between_agents(self):
        y = torch.arange(3)[:, None].expand(3, 200).contiguous()
        part = Examples(torch.zeros(3, 200, 2), y)
        shuffled = shuffle_labels(Task(part, part, 3), random_data.seeded(1)).train.y
        kept = (shuffled == y).double().mean(1)
        assert (kept - 1 / 3).abs().max() < 0.1

    @given(SEEDS, st.integers(2, 6), st.booleans())
    def test_renaming_gives_every_class_another_name_and_changes_nothing_else(
        self, seed, classes, masked
    ):
        task = random_data.task(seed, classes=classes, masked=masked)
        renamed = rename_labels(task, random_data.seeded(seed))
        names = {}
        for part in ("train", "test"):
            before, after = getattr(task, part), getattr(renamed, part)
            assert torch.equal(before.x, after.x)
            assert padding_is_zero(after)
            pairs = zip(
                random_data.real_examples(before), random_data.real_examples(after), strict=True
            )
            for old, new in pairs:
                for (_, name), (_, other) in zip(old, new, strict=True):
                    assert names.setdefault(name, other) == other
        assert all(name != other for name, other in names.items())
        assert len(set(names.values())) == len(names)

    def test_a_single_class_keeps_its_name(self):
        task = random_data.task(0, classes=1)
        assert torch.equal(rename_labels(task, random_data.seeded(0)).train.y, task.train.y)

    @given(SEEDS, st.booleans())
    def test_rotating_preserves_inner_products_within_and_between_training_and_test(
        self, seed, masked
    ):
        task = random_data.task(seed, features=4, masked=masked)
        rotated = rotate_features(task, random_data.seeded(seed))
        before = torch.cat([task.train.x.flatten(0, 1), task.test.x.flatten(0, 1)])
        after = torch.cat([rotated.train.x.flatten(0, 1), rotated.test.x.flatten(0, 1)])
        torch.testing.assert_close(after @ after.T, before @ before.T)
        assert not torch.allclose(after, before)
        assert torch.equal(rotated.train.y, task.train.y)
        assert padding_is_zero(rotated.train)

    def test_rotations_prefer_no_direction(self):
        part = Examples(torch.eye(3)[None], torch.zeros(1, 3, dtype=torch.int64))
        turned = [
            rotate_features(Task(part, part, 1), random_data.seeded(seed)).train.x[0]
            for seed in range(300)
        ]
        mean = torch.stack(turned).mean(0)
        assert mean.abs().max() < 4 * (3 * 300) ** -0.5  # four standard errors

    @given(SEEDS)
    def test_an_intervention_follows_from_its_generator(self, seed):
        task = random_data.task(seed)
        for intervene in (shuffle_labels, rename_labels, rotate_features):
            first, second = (intervene(task, random_data.seeded(seed)) for _ in range(2))
            assert torch.equal(first.train.x, second.train.x)
            assert torch.equal(first.train.y, second.train.y)

    @given(SEEDS, st.booleans())
    def test_chance_is_the_accuracy_of_heads_that_look_at_nothing(self, seed, masked):
        task = random_data.task(seed, masked=masked, classes=4)
        train = [y for agent in random_data.real_examples(task.train) for _, y in agent]
        test = [pair for agent in random_data.real_examples(task.test) for pair in agent]
        counts = [train.count(label) for label in range(4)]
        found = []
        for answer in range(4):
            if counts[answer] == max(counts):
                bias = [float(label == answer) for label in range(4)]
                found.append(naive.accuracy([0.0] * 3 * 4 + bias, test, 4))
        assert chance(task) == pytest.approx(sum(found) / len(found))
        assert chance(rename_labels(task, random_data.seeded(seed))) == pytest.approx(chance(task))

    def test_centralised_training_depends_on_neither_names_nor_axes(self):
        method = Centralised(1e-2)
        for seed in range(5):
            task = random_data.task(seed, agents=10, train=20, test=20, classes=4)
            untouched = method.accuracy(task)
            for intervene in (rename_labels, rotate_features):
                assert method.accuracy(intervene(task, random_data.seeded(seed))) == untouched
            first, second = task.train.y.flatten().bincount().sort(descending=True).values[:2]
            assert untouched > chance(task)
            if first > second:  # of two equally frequent classes either may be answered
                blank = blank_features(task, random_data.seeded(seed))
                assert method.accuracy(blank) == pytest.approx(chance(task))


def judged(*, skill=0.8, blanked=0.0, shuffled=0.0, renamed=1.0, spread=0.0):
    """Judge shares of the skill; each differs by `spread` up and down, on four tasks."""
    guess = torch.full((4,), 0.125, dtype=torch.float64)
    sides = torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    shares = (1.0, blanked, shuffled, renamed)
    noise = (0.0, spread, spread, spread)
    untouched, *touched = (
        guess + skill * (share + width * sides) for share, width in zip(shares, noise, strict=True)
    )
    return judge(untouched, guess, *touched)


TINY = 1e-6
# The standard error of ±1 on four tasks: the standard deviation 2/√3, divided by √4.
ERROR = 3**-0.5


class TestVerdict:
    def test_a_learner_falls_to_chance_without_data_and_keeps_its_skill_with_new_names(self):
        verdict = judged()
        assert verdict.kind == "learned to learn"
        assert verdict.skill == pytest.approx(0.8)
        assert verdict.kept == pytest.approx({"blanked": 0, "shuffled": 0, "renamed": 1})
        assert judged(blanked=-0.3, shuffled=-0.1).kind == "learned to learn"

    @pytest.mark.parametrize("name", ["blanked", "shuffled"])
    def test_skill_left_without_data_decides_at_a_tenth_and_a_quarter(self, name):
        for share, kind in (
            (0.1 - TINY, "learned to learn"),
            (0.1 + TINY, "learned both"),
            (0.25 - TINY, "learned both"),
            (0.25 + TINY, "learned a classifier"),
            (1.0, "learned a classifier"),
        ):
            assert judged(**{name: share}).kind == kind

    def test_skill_kept_with_new_names_decides_at_a_half_and_nine_tenths(self):
        for share, kind in (
            (0.0, "learned a classifier"),
            (0.5 - TINY, "learned a classifier"),
            (0.5 + TINY, "learned both"),
            (0.9 - TINY, "learned both"),
            (0.9 + TINY, "learned to learn"),
        ):
            assert judged(renamed=share).kind == kind

    def test_a_difference_counts_from_two_standard_errors_on(self):
        beyond = 0.2 / (2 * ERROR)
        wide, narrow = beyond * (1 + TINY), beyond * (1 - TINY)
        assert judged(blanked=0.45, spread=narrow).kind == "learned a classifier"
        assert judged(blanked=0.45, spread=wide).kind != "learned a classifier"
        assert judged(renamed=0.3, spread=narrow).kind == "learned a classifier"
        assert judged(renamed=0.3, spread=wide).kind != "learned a classifier"

    def test_large_errors_leave_an_optimizer_undecided(self):
        spread = 0.25 / (2 * ERROR)
        assert judged(spread=spread * (1 - TINY)).kind == "learned to learn"
        assert judged(spread=spread * (1 + TINY)).kind == "undecided"

    def test_an_optimizer_without_skill_learned_nothing(self):
        assert judged(skill=0.0, renamed=0.0).kind == "learned nothing"
        assert judged(skill=-0.1).kind == "learned nothing"
        assert "not above chance" in judged(skill=0.0).sentence("It")

    def test_differences_are_paired_by_task(self):
        # Tasks differ by far more than the shares do, and share by share they agree.
        skill = torch.tensor([0.1, 0.8, 0.3, 0.6], dtype=torch.float64)
        guess = torch.tensor([0.2, 0.1, 0.3, 0.1], dtype=torch.float64)
        shares = (1.0, 0.0, 0.0, 0.45)
        assert judge(*_insert(guess, [guess + s * skill for s in shares])).kind == (
            "learned a classifier"
        )

    def test_the_sentence_names_the_kind_and_the_numbers(self):
        said = judged(blanked=0.4, shuffled=-0.2, renamed=0.1).sentence("U-DGD")
        assert said.startswith("U-DGD learned a classifier, not how to learn: of its 80.0 points")
        assert [part in said for part in ("40 %", "0 %", "10 %")] == [True] * 3


def _insert(guess, found):
    return [found[0], guess, *found[1:]]


@pytest.fixture(autouse=True)
def _little_tuning(monkeypatch):
    """Let one task choose the penalty of centralised training, which is most of the time otherwise."""
    monkeypatch.setattr(AUDIT, "TUNING_TASKS", 1)


@pytest.fixture(scope="module")
def digits():
    return experiments.features()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small optimizer of the paper's layers, meta-trained long enough to know the digits by heart."""
    folder = tmp_path_factory.mktemp("audit") / "run"
    options = ["--surf.steps", "120", "--surf.validate-every", "60", "--surf.learning-rate", "3e-3"]
    assert run(["train", "smoke", "--folder", str(folder), *options]) == 0
    return folder


def study_of(experiment, **changes):
    config = experiment.config
    own = StudyConfig(data=config.data, task=config.task, network=config.network, tasks=4)
    return Study(replace(own, **changes), features=experiment.features)


def dgd(steps=60):
    return Subject("DGD", lambda model: DGD(model, 1.0, start=Start(0.0, 0.1)), steps)


class TestAudit:
    def test_the_papers_layer_learned_a_classifier(self, trained):
        experiment = Experiment.load(trained)
        found = audit(Subject.of(experiment), study_of(experiment))
        assert found.verdict.kind == "learned a classifier"
        assert found.verdict.kept["blanked"] > 0.5
        assert found.verdict.kept["renamed"] < 0.25
        assert "digits" in found.row("unseen").note
        assert found.row("unseen").accuracy is None
        # What it knows does not depend on who is linked to whom.
        assert found.row("complete").change.abs().mean() < 0.1

    def test_the_papers_layer_fails_on_other_data(self, trained, digits):
        experiment = Experiment.load(trained)
        width = experiment.model.features
        # Twenty classes, each half of a digit's, on features of which it knows nothing.
        x, y = digits.train_x[:, -width:], digits.train_y + 10 * (torch.arange(1300) % 2)
        other = Features("other", x[:650], y[:650], x[650:], y[650:], 20)
        config = study_of(experiment).config
        config = replace(config, data=replace(config.data, source="other"))
        found = audit(
            Subject.of(experiment), study_of(experiment), other=Study(config, features=other)
        )
        row = found.row("unseen")
        assert row.title == "on other"
        assert "replacement" in row.note, "there are 650 examples of twenty classes"
        assert float((row.centralised - row.chance).mean()) > 0.2
        assert float((row.accuracy - row.chance).mean()) < 0.1

    def test_other_data_of_another_shape_gets_a_note(self, trained, digits):
        experiment = Experiment.load(trained)
        other = Study(STUDY, features=digits)
        found = audit(Subject.of(experiment), study_of(experiment, tasks=2), other=other)
        note = found.row("unseen").note
        assert "16 features and 10 classes" in note
        assert "made for 8 and 10" in note

    def test_other_data_with_too_few_examples_gets_a_note(self, digits):
        # Of three examples of a class, validation has one, which cannot both train and test.
        classes = [(digits.train_y == label).nonzero().flatten()[:3] for label in range(10)]
        few = torch.cat(classes)
        other = replace(digits, train_x=digits.train_x[few], train_y=digits.train_y[few])
        study = Study(replace(STUDY, tasks=2), features=digits)
        found = audit(dgd(2), study, other=Study(study.config, features=other), agents=())
        assert found.row("unseen").note.startswith("not possible (pool: got 1 examples of")
        assert found.row("unseen").accuracy is None

    def test_dgd_learns(self, digits):
        found = audit(dgd(), Study(STUDY, features=digits))
        assert found.verdict.kind == "learned to learn"
        assert found.row("unseen").accuracy is not None, "it was never meta-trained on anything"
        names = ["untouched", "blanked", "shuffled", "renamed", "rotated", "unseen"]
        names += ["erdos-renyi", "ring", "torus", "complete", "stale", "agents-4", "agents-16"]
        assert [row.name for row in found.rows] == names

    def test_the_pretrained_optimizer_learned_to_learn(self, digits):
        study = Study(STUDY, features=digits)
        found = audit(Subject.of(load(), 10), study, agents=())
        assert found.verdict.kind == "learned to learn"
        for name in ("renamed", "rotated"):
            assert found.row(name).change.abs().max() < 0.02
        for name in ("blanked", "shuffled"):
            row = found.row(name)
            assert float((row.accuracy - row.chance).mean()) < 0.1

    @pytest.mark.parametrize(
        ("source", "seen"), [("fashion-mnist-mini", True), ("digits", False), ("mnist", False)]
    )
    def test_data_of_meta_training_is_not_unseen(self, source, seen, digits):
        study = Study(replace(STUDY, data=FeatureConfig(source=source), tasks=2), features=digits)
        row = audit(replace(dgd(2), seen=("fashion-mnist",)), study, agents=()).row("unseen")
        assert (row.accuracy is None) == seen

    def test_the_same_seed_gives_the_same_audit(self, digits):
        config = replace(STUDY, tasks=2)
        first, second = (
            audit(dgd(5), Study(config, features=digits), agents=()).to_dict() for _ in range(2)
        )
        assert first == second
        assert json.dumps(first, allow_nan=False)

    def test_other_numbers_of_agents_keep_the_examples_of_each(self, digits):
        shapes = []

        class Watched(DGD):
            def init(self, task, network, streams):
                shapes.append(tuple(task.train.y.shape))
                return super().init(task, network, streams)

        study = Study(replace(STUDY, tasks=2), features=digits)
        found = audit(Subject("DGD", Watched, 1), study, agents=(4, 40))
        assert set(shapes) == {(8, 20), (4, 20), (40, 20)}
        assert "replacement" in found.row("agents-40").note
        assert not found.row("agents-4").note

    def test_half_of_the_agents_is_rounded_up_to_an_even_number(self, digits):
        study = Study(replace(STUDY, task=replace(STUDY.task, agents=6), tasks=2), features=digits)
        found = audit(dgd(2), study)
        assert [row.name for row in found.rows[-2:]] == ["agents-4", "agents-12"]
        assert found.row("agents-4").accuracy is not None

    @pytest.mark.parametrize(("agents", "expected"), [(2, 0.693), (20, 0.2996), (200, 0.1)])
    def test_random_graphs_are_dense_enough_to_be_connected(self, agents, expected):
        config = replace(STUDY, task=replace(STUDY.task, agents=agents))
        networks = {row.name: network for row, network in AUDIT._other_networks(config)}
        found = networks["erdos-renyi"].graph.probability
        assert found == pytest.approx(expected, abs=1e-3)

    def test_an_impossible_network_gets_a_note(self, digits):
        task = replace(STUDY.task, agents=7)
        network = NetworkConfig(GraphConfig("ring"), shift="metropolis")
        study = Study(replace(STUDY, task=task, network=network, tasks=2), features=digits)
        found = audit(dgd(2), study, agents=())
        assert "not possible (agents: got 7" in found.row("torus").note
        assert "not possible (degree: got 3" in found.row("regular").note
        assert "ring" not in [row.name for row in found.rows]

    def test_through_a_server_there_are_no_other_graphs(self, digits):
        network = NetworkConfig(GraphConfig("star"), reporting=6)
        study = Study(replace(STUDY, network=network), features=digits)
        found = audit(Subject.of(load(), 10), study, agents=(4,))
        assert [row.name for row in found.rows[6:]] == ["reporting", "stale", "agents-4"]
        assert found.verdict.kind == "learned to learn"

    def test_a_custom_environment_keeps_its_tasks_and_network(self, digits):
        class CustomTasks(Environment):
            def test_tasks(self, seed, count):
                return [
                    rotate_features(task, random_data.seeded(0))
                    for task in super().test_tasks(seed, count)
                ]

        config = replace(STUDY, tasks=2)
        study = Study(config, environment=CustomTasks(config, digits))
        found = audit(dgd(2), study, agents=(4,))
        assert [row.name for row in found.rows][5:] == ["unseen"]
        with pytest.raises(TypeError, match=r"^study: got 'digits', but it must be a Study"):
            audit(dgd(2), "digits")

    def test_a_run_that_diverges_has_no_accuracy(self, digits):
        class Diverging(DGD):
            def step(self, state, *_):
                return State(state.weights * float("nan"), state.steps + 1)

        study = Study(replace(STUDY, tasks=2), features=digits)
        found = audit(Subject("it", Diverging, 2), study, agents=())
        assert not found.row("untouched").accuracy.any()
        assert found.verdict.kind == "learned nothing"

    def test_one_task_is_too_few(self, digits):
        with pytest.raises(ValueError, match="tasks: got 1, but it must be at least 2"):
            audit(dgd(), Study(replace(STUDY, tasks=1), features=digits))
