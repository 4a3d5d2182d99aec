"""All figures at the smallest size, from nothing to the report; interrupted, resumed, refused."""

import csv
import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsurf.cli.main import run
from fedsurf.common.writing import write_json
from fedsurf.paper.claims import Claim
from fedsurf.paper.estimate import Pace, seconds_of, spoken, total
from fedsurf.paper.figures import FIGURES, figure_named
from fedsurf.paper.folder import ReproductionFolder, slug
from fedsurf.paper.making import plans_named, reproduce
from fedsurf.paper.optimizers import describe, source_name
from fedsurf.paper.report import write_report
from fedsurf.paper.sizes import size_named
from fedsurf.paper.stages import (
    Audited,
    Learned,
    Train,
    in_order,
    key_of,
    older_key_of,
    parameters_of,
    run_apart,
    silent,
    udgd_parameters,
)
from fedsurf.paper.wording import deviations, number_text
from fedsurf.paper.workshop import SURF_T, UNTUNED, Workshop
from fedsurf.unrolled import UDGD

SMOKE = size_named("smoke")
FILES = {"figure.png", "figure.svg", "data.csv", "data.json", "config.json", "claims.json", "audit"}
SAME = ("data.csv", "data.json", "claims.json", "figure.svg")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Everything, made by the command line."""
    folder = tmp_path_factory.mktemp("reproduction") / "all"
    assert run(["reproduce", "all", "--preset", "smoke", "--folder", str(folder)]) == 0
    return folder


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_whole(made, name):
    place = made / name
    assert {file.name for file in place.iterdir()} == FILES
    claims = [Claim.from_dict(one) for one in read(place / "claims.json")]
    assert claims
    assert all(claim.id.startswith(name) for claim in claims)
    with (place / "data.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) > 3
    config = read(place / "config.json")
    assert config["size"]["name"] == "smoke"
    assert config["optimizers"]
    for label, optimizer in config["optimizers"].items():
        assert (place / optimizer["run"] / "best.safetensors").is_file()
        audit = read(place / "audit" / f"{slug(label)}.json")
        assert audit["sentence"]
        assert (place / "audit" / f"{slug(label)}.csv").is_file()


def test_the_documentation_lists_all_that_is_written(made):
    page = (Path(__file__).parents[2] / "docs" / "reproducing.md").read_text()
    listed = page.split("## What is written")[1].split("##")[0]
    for file in made.iterdir():
        assert f"`{'FIGURE' if file.name in FIGURES else file.name}" in listed, file.name


@pytest.mark.parametrize("name", ["speed-regular", "speed-star", "heterogeneity"])
def test_classical_methods_run_twice_and_the_pretrained_optimizer_once(made, name):
    curves = read(made / name / "data.json")["curves"]
    panels = {curve["panel"] for curve in curves}
    for panel in panels:
        here = [curve for curve in curves if curve["panel"] == panel]
        tuned = {curve["label"] for curve in here if curve["kind"] == "tuned"}
        untuned = {curve["label"] for curve in here if curve["kind"] in UNTUNED}
        assert tuned == untuned
        assert len(tuned) == (5 if name == "speed-star" else 3)
        assert [curve["label"] for curve in here].count(SURF_T) == 1
    by_name = {(curve["label"], curve["kind"]): curve for curve in curves}
    if name == "speed-regular":
        paper = by_name["DGD", "the paper's settings"]
        assert paper["settings"] == {"step_size": 1000.0, "batch_size": 10}
    if name == "speed-star":
        assert ("FedAvg", "textbook settings") in by_name


def test_accuracy_through_a_server_is_relative_to_centralised_training(made):
    data = read(made / "speed-star" / "data.json")
    point = data["curves"][0]["points"][-1]
    level = data["levels"][0]["mean"]
    # The mean of ratios is near the ratio of means.
    assert point["relative_accuracy"] == pytest.approx(point["pooled_accuracy"] / level, rel=0.1)


def test_the_ablation_asynchrony_and_theory_share_their_optimizers(made):
    runs = [
        {one["run"] for one in read(made / name / "config.json")["optimizers"].values()}
        for name in ("ablation", "asynchrony", "theory")
    ]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 2


def test_without_stale_agents_asynchrony_is_the_end_of_the_ablation(made):
    layers = read(made / "ablation" / "data.json")["curves"]
    stale = read(made / "asynchrony" / "data.json")["curves"]
    for one, other in zip(layers, stale, strict=True):
        assert one["points"][-1]["accuracy"] == other["points"][0]["accuracy"]


def test_the_report_needs_nothing_else(made):
    text = (made / "report.html").read_text()
    references = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')>\s]+)""", text)
    assert references
    for reference in references:
        assert reference.startswith(("data:", "#")), reference
    assert "<script" not in text
    assert "<link" not in text
    assert "@import" not in text
    anchors = set(re.findall(r'id="([^"]+)"', text))
    assert {one[1:] for one in references if one.startswith("#")} <= anchors
    assert text.count("data:image/svg+xml") == len(FIGURES) + 1


def test_the_reports_tell_every_claim_and_every_audit(made):
    page, text = (made / "report.html").read_text(), (made / "report" / "report.md").read_text()
    for name, plan in FIGURES.items():
        assert (made / "report" / f"{name}.png").is_file()
        assert f"({name}.png)" in text
        assert plan.title in text
        for claim in read(made / name / "claims.json"):
            assert claim["paper"] in text
        for file in (made / name / "audit").glob("*.json"):
            assert read(file)["sentence"] in text
            assert read(file)["sentence"] in page
    assert read(made / "report" / "claims.json").keys() == FIGURES.keys()
    assert str(made) not in text
    assert str(made) not in page
    for report in (text, page):
        assert "on 1 validation task" in report
        assert "SURF-T starts at W = 0, U-DGD and the classical methods at W_0 ~ N(0, 1²)" in report
        assert not re.search(r"\b1 (validation tasks|minutes|stages)", report)


def test_the_report_can_be_written_again_from_the_folder(made, capsys):
    before = (made / "report" / "report.md").read_bytes()
    (made / "report" / "report.md").unlink()
    assert run(["reproduce", "report", "--folder", str(made), "--json"]) == 0
    assert (made / "report" / "report.md").read_bytes() == before
    assert json.loads(capsys.readouterr().out).keys() == FIGURES.keys()


class PressedError(Exception):
    """Somebody pressed a key."""


def test_interrupted_and_resumed_it_is_the_same_bits(made, tmp_path):
    """Cut once within meta-training and once between stages."""

    class Cut:
        def on_start(self, done, total):
            pass

        def on_step(self, record):
            if record.step == 30:
                raise PressedError

        def on_validation(self, record, best_by):
            pass

    plans, folder, lines = [FIGURES["ablation"]], tmp_path / "cut", []
    cut = Workshop(folder, SMOKE, silent, lambda: nullcontext([Cut()]))
    with pytest.raises(PressedError):
        reproduce(plans, SMOKE, folder, workshop=cut)
    assert not (folder / "ablation").exists()

    def stop_at_audit(line):
        if "audit" in line:
            raise PressedError

    with pytest.raises(PressedError):
        reproduce(plans, SMOKE, folder, resume=True, say=stop_at_audit)
    reproduce(plans, SMOKE, folder, resume=True, say=lines.append)
    assert not any("meta-train" in line for line in lines)  # what is finished is not repeated
    for name in SAME:
        here, there = folder / "ablation" / name, made / "ablation" / name
        assert here.read_bytes() == there.read_bytes(), name
    configs = [read(place / "ablation" / "config.json") for place in (folder, made)]
    for config in configs:
        config["made_with"].pop("commit", None)  # somebody may commit meanwhile
    assert configs[0] == configs[1]
    for best in folder.glob("runs/*/best.safetensors"):
        assert best.read_bytes() == (made / best.relative_to(folder)).read_bytes()
    # Once more there is nothing left to do, and nothing changes.
    lines.clear()
    reproduce(plans, SMOKE, folder, resume=True, say=lines.append)
    assert "0 of" in lines[1]
    assert (folder / "ablation" / "data.csv").read_bytes() == (
        made / "ablation" / "data.csv"
    ).read_bytes()


def test_a_folder_in_use_is_refused_without_resume(made, capsys):
    assert run(["reproduce", "theory", "--preset", "smoke", "--folder", str(made)]) == 1
    assert "something in this folder already" in capsys.readouterr().err


def test_a_folder_of_another_size_is_refused(made, tmp_path):
    about = {"preset": "paper", "data": {}}
    with pytest.raises(ValueError, match="differs in preset"):
        ReproductionFolder(made).open(about, resume=True)


def test_a_figure_with_other_data_may_be_added_but_not_one_whose_data_changed(tmp_path):
    folder = ReproductionFolder(tmp_path / "new")
    first, second = {"source": "a", "components": 3}, {"source": "b", "components": None}
    folder.open({"preset": "smoke", "data": {"cifar10": first}}, resume=False)
    folder.open({"preset": "smoke", "data": {"mnist": second}}, resume=True)
    assert folder.about()["data"] == {"cifar10": first, "mnist": second}
    with pytest.raises(ValueError, match=r"data.mnist.components \(None there, 3 here\)"):
        folder.open(
            {"preset": "smoke", "data": {"mnist": {**second, "components": 3}}}, resume=True
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["all", "--features", "missing.npz"], 1, "features: got 'missing.npz'"),
        (["all", "--features", "features.csv"], 1, "it must be an .npz file"),
        (["report", "--folder", "nowhere"], 1, "there is no such file"),
        (["theory", "--preset", "smoke", "--jobs", "0"], 1, "jobs: got 0"),
    ],
)
def test_errors_say_what_is_wanted(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", *arguments]) == code
    assert message in capsys.readouterr().err


def test_missing_data_is_told_with_the_way_around_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
    assert run(["reproduce", "speed-star", "--preset", "desktop"]) == 3
    assert "--features FILE.npz" in capsys.readouterr().err
    assert not (tmp_path / "reproduction").exists()


def test_an_unknown_figure_is_an_error():
    with pytest.raises(ValueError, match="must be one of speed-regular"):
        figure_named("figure-1")
    with pytest.raises(ValueError, match="must be one of smoke"):
        size_named("huge")


def test_ready_made_features_take_the_place_of_images(tmp_path):
    file = tmp_path / "features.npz"
    np.savez(file, x=np.zeros((4, 3)), y=np.zeros(4, int))
    desktop = size_named("desktop").with_features(file, None)
    assert desktop.regular.data == desktop.star.data
    assert desktop.regular.data.source == str(file)
    assert (desktop.regular.data.backbone, desktop.regular.data.components) == ("pca", 32)
    assert desktop.ablation.data.source == "mnist"
    paper = size_named("paper").with_features(file, file)
    assert (paper.ablation.data.backbone, paper.ablation.data.components) == ("none", None)
    assert source_name(desktop.regular.data.source) == "features.npz"


def test_the_papers_size_is_the_papers():
    paper = size_named("paper")
    assert parameters_of(paper.regular) == pytest.approx(531e6, rel=0.002)
    assert (paper.tasks, paper.rounds, paper.regular.task.agents) == (30, 200, 100)
    for config in (paper.regular, paper.with_network(paper.random), paper.star, paper.ablation):
        assert deviations(config) == []
    assert any("penalty" in one for one in deviations(size_named("desktop").regular))


def test_parameters_are_counted_as_they_are():
    from fedsurf.common.randomness import generator
    from fedsurf.models import SoftmaxHead

    model, config = SoftmaxHead(5, 3), SMOKE.regular.optimizer
    optimizer = UDGD(model, config, generator(0))
    assert udgd_parameters(model, config) == sum(p.numel() for p in optimizer.parameters())


def test_stages_come_once_and_after_what_they_need():
    stages = in_order([stage for plan in plans_named("all") for stage in plan.stages(SMOKE)])
    keys = [key_of(stage) for stage in stages]
    assert len(set(keys)) == len(keys)
    for place, stage in enumerate(stages):
        assert all(key_of(need) in keys[:place] for need in stage.needs())
    # No two train the same, which would be in the same folder at once.
    trained = [stage.config for stage in stages if isinstance(stage, Train)]
    assert len(set(trained)) == len(trained)
    desktop = size_named("desktop")
    trained = [
        s for plan in plans_named("all") for s in plan.stages(desktop) if isinstance(s, Train)
    ]
    names = {describe(stage.config) for stage in trained}
    assert len(names) == len({stage.config for stage in trained}) == 8


def test_what_a_stage_is_called_does_not_tell_it_from_others_but_what_it_does_does():
    study, other = SMOKE.study_of(SMOKE.regular), SMOKE.study_of(SMOKE.star)
    one, same = (Train(SMOKE.regular, name) for name in ("regular", "MNIST"))
    assert SMOKE.regular == SMOKE.ablation
    assert key_of(one) == key_of(same) != key_of(Train(SMOKE.star, "regular"))
    assert key_of(Audited(one)) == key_of(Audited(same)) != key_of(one)
    learned = Learned(study, one, "regular")
    assert key_of(learned) == key_of(Learned(study, same, "MNIST"))
    assert key_of(learned) != key_of(Learned(other, one, "regular"))
    assert key_of(learned) != key_of(Learned(study, one, "regular", "U-DGD, even"))
    assert in_order([learned, same, Audited(same)]) == [one, learned, Audited(same)]


def test_stages_that_an_older_version_finished_are_finished(made, tmp_path):
    shutil.copytree(made, tmp_path / "older")
    folder = ReproductionFolder(tmp_path / "older")
    stages = in_order(FIGURES["theory"].stages(SMOKE))
    older = {older_key_of(stage): folder.finished()[key_of(stage)] for stage in stages}
    write_json(folder.path / "stages.json", older)
    said = []
    reproduce([FIGURES["theory"]], SMOKE, folder.path, resume=True, say=said.append)
    assert said[1] == f"0 of {len(stages)} stages are left."


def test_other_processes_make_the_same_and_their_errors_are_errors_here(made, tmp_path):
    surf = replace(SMOKE.regular.surf, learning_rate=-1.0)
    broken = Train(replace(SMOKE.regular, surf=surf), "broken")
    stages = in_order(FIGURES["theory"].stages(SMOKE))[:2]
    done = []
    with pytest.raises(ValueError, match="learning_rate: got -1"):
        run_apart(
            [*reversed(stages), broken], tmp_path, SMOKE, 1, set(), lambda one, _: done.append(one)
        )
    assert done == stages  # the certificate needs the optimizer
    (best,) = tmp_path.glob("runs/*/best.safetensors")
    assert best.read_bytes() == (made / best.relative_to(tmp_path)).read_bytes()


def test_the_forecast_counts_the_steps_of_meta_training():
    pace = Pace(step=2.0, server_step=3.0, gradient=0.0, look=0.0, centralised=0.0)
    surf = replace(SMOKE.regular.surf, steps=100, validate_every=200)
    graph = Train(replace(SMOKE.regular, surf=surf), "graph")
    server = Train(replace(SMOKE.star, surf=surf), "star")
    assert seconds_of(graph, SMOKE, pace) == 200
    assert seconds_of(server, SMOKE, pace) == 300
    assert total([graph, server], SMOKE, pace, 1) == 500
    assert total([graph, server], SMOKE, pace, 2) == 300  # one stage cannot be divided
    assert [spoken(s) for s in (2.04, 61, 600, 7200, 3e5)] == [
        "2.0 seconds", "61 seconds", "10 minutes", "2.0 hours", "3.5 days",
    ]  # fmt: skip


def test_an_unfinished_run_is_reported_as_such(tmp_path):
    folder = ReproductionFolder(tmp_path)
    folder.open({"preset": "smoke", "data": {}}, resume=False)
    with pytest.raises(ValueError, match="got no figure and no optimizer"):
        write_report(folder)
    workshop = Workshop(tmp_path, SMOKE, silent)
    workshop.train(replace(SMOKE.regular, surf=replace(SMOKE.regular.surf, steps=20)))
    text = write_report(folder).markdown.read_text()
    assert "20 of 20" in text
    assert "No figure is finished yet." in text


def test_numbers_are_said_with_their_errors():
    from fedsurf.paper.claims import Number

    assert number_text(Number("", 0.8312, 0.0034), "%") == "83.1 ± 0.3 %"
    assert number_text(Number("", 0.97), "%") == "97.0 %"
    assert number_text(Number("", float("inf")), "") == "∞"
