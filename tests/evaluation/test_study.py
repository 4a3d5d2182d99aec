"""Studies: the same tasks for all entrants, results cached by what they depend on, fair runs."""

import math
import re
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch
from studies import DGD, ONE_TASK, SMALL, STAR, same

from fedsurf.algorithms import DGD as DGDAlgorithm  # noqa: N811
from fedsurf.common.files import FileError, read_all_tensors
from fedsurf.common.writing import write_tensors
from fedsurf.evaluation import study as study_module
from fedsurf.evaluation.config import StudyConfig
from fedsurf.evaluation.experiment import Experiment
from fedsurf.evaluation.methods import METHODS, Entrant, Method
from fedsurf.evaluation.presets import preset
from fedsurf.evaluation.run import Trajectories, recorded_steps, run_all
from fedsurf.evaluation.study import Environment, Study
from fedsurf.network import Network, NetworkConfig
from fedsurf.pretrained import load


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on digits with 8 features."""
    config, path = preset("smoke"), tmp_path_factory.mktemp("runs") / "run"
    surf = replace(config.surf, steps=1, validation_tasks=2)
    Experiment(replace(config, surf=surf)).train(path)
    return path


ON_8_FEATURES = replace(ONE_TASK, data=preset("smoke").data)


def test_a_configuration_determines_the_results() -> None:
    assert same(Study(SMALL).run(DGD), Study(SMALL).run(DGD))


def test_results_of_several_seeds_are_joined() -> None:
    both = Study(replace(SMALL, seeds=(0, 1))).run(DGD)
    first, second = Study(SMALL).run(DGD), Study(replace(SMALL, seeds=(1,))).run(DGD)
    assert torch.equal(both.loss[:2], first.loss)
    assert torch.equal(both.loss[2:], second.loss)
    assert not same(first, second)


def test_all_methods_start_at_the_same_weights() -> None:
    study = Study(SMALL)
    losses = [
        float(study.run(Entrant(name, name)).loss[0, 0])
        for name in ("dgd", "dsgd", "extra", "exact-diffusion")
    ]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-6)


def test_a_study_needs_tasks_rounds_and_different_seeds() -> None:
    for bad in ({"tasks": 0}, {"rounds": 0}, {"seeds": ()}, {"seeds": (1, 1)}):
        (name,) = bad
        with pytest.raises(ValueError, match=f"^{name}: got"):
            Study(replace(StudyConfig(), **bad))


def test_an_operator_that_does_not_average_is_refused() -> None:
    study = Study(replace(SMALL, network=replace(SMALL.network, shift="laplacian")))
    wanted = r"^network\.shift: got 'laplacian', .* dgd mixes averages"
    with pytest.raises(ValueError, match=wanted):
        study.run(DGD)


def test_a_round_of_divergence_between_two_records_is_reported() -> None:
    class BreaksAt33(DGDAlgorithm):
        def step(self, state, task, network, streams):
            after = super().step(state, task, network, streams)
            return replace(after, weights=after.weights * math.nan) if after.steps == 33 else after

    study, steps = Study(ONE_TASK), recorded_steps(60)
    assert 33 not in steps
    runs = study.run_algorithm(BreaksAt33(study.model), 60, record=steps)
    assert runs.diverged == [33]
    assert int(runs.rounds[0, -1]) == 60
    whole = study.run_algorithm(DGDAlgorithm(study.model), 60, record=steps)
    two = Trajectories.join("DGD", [runs, whole])
    assert two.taken.tolist() == steps
    every = study.run_algorithm(BreaksAt33(study.model), 200)
    assert every.rounds[0].tolist() == list(range(201)), "whole numbers, not rounded shares"


class TestCache:
    def test_results_are_read_from_the_cache(self, tmp_path, monkeypatch):
        first, ceiling, done = Study(SMALL, str(tmp_path)), Study(SMALL, tmp_path).ceiling(), []
        runs = first.run(DGD)
        monkeypatch.setattr(study_module, "run_all", None)
        monkeypatch.setattr(study_module, "Centralised", None)
        study = Study(SMALL, tmp_path)
        assert same(study.run(DGD, lambda: done.append(1)), runs)
        assert torch.equal(study.ceiling(lambda: done.append(1)), ceiling)
        assert len(done) == 4

    def test_other_settings_sizes_and_data_are_computed(self, tmp_path):
        study = Study(SMALL, tmp_path)
        first = study.run(DGD)
        slower = replace(DGD, settings={"step_size": 0.2, "batch_size": None})
        assert not same(study.run(slower), first)
        assert Study(replace(SMALL, rounds=7), tmp_path).run(DGD).loss.shape == (2, 8)
        flipped = replace(study.features, test_x=study.features.test_x.flip(1))
        assert not same(Study(SMALL, tmp_path, flipped).run(DGD), first)
        assert len(list(tmp_path.iterdir())) == 4

    def test_the_default_start_is_the_papers(self, tmp_path):
        first = Study(replace(SMALL, initial_deviation=1.0), tmp_path).run(DGD)
        assert SMALL.initial_deviation is None
        assert same(Study(SMALL, tmp_path).run(DGD), first)
        assert len(list(tmp_path.iterdir())) == 1

    def test_a_damaged_file_is_computed_again(self, tmp_path):
        first = Study(SMALL, tmp_path).run(DGD)
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:100])
        assert same(Study(SMALL, tmp_path).run(DGD), first)

    def test_labels_of_any_length_are_stored(self, tmp_path, monkeypatch):
        study = Study(ONE_TASK, tmp_path)
        entrants = [replace(DGD, label=letter * 300) for letter in ("x", "ß")]
        found = [study.run(entrant) for entrant in entrants]
        monkeypatch.setattr(study_module, "run_all", None)
        for entrant, runs in zip(entrants, found, strict=True):
            again = study.run(entrant)
            assert again.name == entrant.label
            assert same(again, runs)

    def test_a_custom_method_is_computed_each_time(self, tmp_path, monkeypatch):
        """Its code may change, in the same process or in the next one."""
        study, found = Study(ONE_TASK, tmp_path), []
        for name, factor in (("mine", 1), ("mine", 2), ("dgd", 1), ("dgd", 2)):

            def build(model, start, step_size, factor=factor):
                return DGDAlgorithm(model, step_size * factor, start=start)

            method = Method(name, "Mine", build, "any", {}, {"step_size": 0.3})
            monkeypatch.setitem(METHODS, name, method)
            found.append(study.run(Entrant("Mine", name)))
        assert not same(*found[:2])
        assert not same(*found[2:])
        assert not list(tmp_path.iterdir())

    def test_a_method_of_the_package_is_stored_by_its_class_and_settings(
        self, tmp_path, monkeypatch
    ):
        study, entrant = Study(ONE_TASK, tmp_path), Entrant("DGD", "dgd", {"step_size": 0.3})
        first = study.run(entrant)
        with monkeypatch.context() as patch:
            patch.setitem(METHODS, "dgd", replace(METHODS["extra"], name="dgd"))
            assert not same(study.run(entrant), first)
        small = replace(METHODS["dgd"], defaults={"step_size": 0.3, "batch_size": 2})
        monkeypatch.setitem(METHODS, "dgd", small)
        assert not same(study.run(entrant), first)

    def test_a_new_version_of_the_code_computes_again(self, tmp_path, monkeypatch):
        study = Study(ONE_TASK, tmp_path)
        study.run(DGD)
        monkeypatch.setattr(study_module, "RESULTS_VERSION", 99)
        study.run(DGD)
        assert len(list(tmp_path.iterdir())) == 2

    def test_custom_tasks_and_networks_are_computed_each_time(self, tmp_path):
        class OnARing(Environment):
            def network(self, seed, config: NetworkConfig | None = None) -> Network:  # noqa: ARG002
                return Network(nx.cycle_graph(30), (config or self.config.network).shift)

        plain = Study(ONE_TASK, tmp_path)
        ring = Study(ONE_TASK, tmp_path, environment=OnARing(plain.config))
        assert not same(plain.run(DGD), ring.run(DGD))
        assert [study.is_custom for study in (plain, ring)] == [False, True]
        assert len(list(tmp_path.iterdir())) == 1


class TestEntrants:
    @pytest.mark.parametrize(
        ("given", "got"),
        [
            ({}, "nothing to run"),
            ({"method": "dgd", "pretrained": "softmax-head"}, "method and pretrained"),
            ({"run": "run", "pretrained": "softmax-head"}, "run and pretrained"),
        ],
    )
    def test_an_entrant_is_one_of_three_kinds(self, given, got):
        wanted = f"entrant: got 'X' with {got}, but it must have one of"
        with pytest.raises(ValueError, match=wanted):
            Entrant("X", **given)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"method": "dgd", "rounds": 5}, "rounds: got it for 'X', but only a pretrained"),
            ({"method": "dgd", "batch_size": 5}, "batch_size: got it for 'X', but only a pretr"),
            ({"run": "run", "settings": {"a": 1}}, "settings: got it for 'X', but only a m"),
        ],
    )
    def test_a_field_of_another_kind_is_refused(self, given, message):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            Entrant("X", **given)

    def test_a_resolved_entrant_has_the_settings_of_its_run(self):
        study = Study(replace(SMALL, seeds=(0, 1)))
        large = Entrant("DGD", "dgd", {"step_size": 0.3, "batch_size": 1000})
        assert study.resolved(large) == study.resolved(DGD) == DGD
        assert study.resolved(Entrant("DGD", "dgd")).settings == METHODS["dgd"].defaults

    @pytest.mark.parametrize("config", [replace(SMALL, tasks=2), STAR], ids=["graph", "star"])
    def test_a_pretrained_optimizer_runs_on_the_same_tasks_and_network(self, config):
        study = Study(config)
        runs = study.run(Entrant("SURF-T", pretrained="softmax-head", rounds=5))
        assert runs.rounds[0].tolist() == [0, 2, 4, 5]
        algorithm = load().on(study.model, 5)
        assert same(runs, run_all(algorithm, study.test_tasks(0), study.network(0), 3))
        assert float(runs.pooled_accuracy[:, -1].min()) > 0.3

    def test_a_pretrained_optimizer_has_twenty_rounds_by_default(self):
        runs = Study(ONE_TASK).run(Entrant("SURF-T", pretrained="softmax-head"))
        assert int(runs.rounds[0, -1]) == 20

    def test_results_of_a_pretrained_optimizer_are_stored_by_weights_rounds_and_batches(
        self, tmp_path, monkeypatch
    ):
        file = tmp_path / "optimizer.safetensors"
        metadata = {"optimizer": vars(load().config)}
        write_tensors(file, dict(load().named_parameters()), metadata)
        study = Study(ONE_TASK, tmp_path / "cache")
        entrant = Entrant("SURF-T", pretrained=str(file), rounds=4)
        others = [entrant, replace(entrant, rounds=6), replace(entrant, batch_size=3)]
        found = [study.run(other) for other in others]
        assert not same(found[0], found[2])
        with monkeypatch.context() as patch:
            patch.setattr(study_module, "run_all", None)
            for other, runs in zip(others, found, strict=True):
                assert same(study.run(other), runs)
        changed = read_all_tensors(file)
        changed["graph.round_out.bias"][0] += 0.5
        write_tensors(file, changed, metadata)
        assert not same(study.run(entrant), found[0])
        file.write_bytes(file.read_bytes()[:500])
        with pytest.raises(FileError, match=r"optimizer\.safetensors: truncated"):
            study.run(entrant)

    def test_a_run_keeps_its_own_shift_operator(self, trained):
        asked = []

        class Watched(Environment):
            def network(self, seed, config: NetworkConfig | None = None) -> Network:
                asked.append(config)
                return super().network(seed, config)

        study = Study(ON_8_FEATURES, environment=Watched(ON_8_FEATURES))
        study.run(Entrant("U-DGD", run=str(trained)))
        assert {config.shift for config in asked} == {preset("smoke").network.shift}

    def test_a_run_on_other_features_is_refused(self, trained, tmp_path):
        entrant = Entrant("U-DGD", run=trained)
        with pytest.raises(ValueError, match=r"data\.components \(8 there, 32 here\)"):
            Study(ONE_TASK).run(entrant)
        features = Study(ON_8_FEATURES).features
        other = replace(features, train_x=2 * features.train_x)
        with pytest.raises(FileError, match="it differs in the features of its train part"):
            Study(ON_8_FEATURES, features=other).run(entrant)
        with pytest.raises(FileError, match="nowhere: there is no such run folder"):
            Study(SMALL).run(replace(entrant, run=str(tmp_path / "nowhere")))

    def test_a_run_from_another_start_is_refused(self, trained):
        study = Study(replace(ON_8_FEATURES, initial_deviation=0.5))
        with pytest.raises(ValueError, match=r"initial_deviation \(1\.0 there, 0\.5 here\)"):
            study.run(Entrant("U-DGD", run=trained))

    def test_components_need_not_agree_without_a_backbone(self, tmp_path):
        config = preset("smoke")
        surf = replace(config.surf, steps=1, validation_tasks=2)
        pixels = replace(config.data, backbone="none")
        Experiment(replace(config, data=pixels, surf=surf)).train(tmp_path / "run")
        data = replace(SMALL.data, backbone="none")
        assert pixels.components != data.components
        Study(replace(ONE_TASK, data=data)).run(Entrant("U-DGD", run=tmp_path / "run"))
