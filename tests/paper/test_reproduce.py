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
from fedsurf.common.files import FileError
from fedsurf.common.randomness import generator
from fedsurf.common.writing import lock_folder
from fedsurf.models import SoftmaxHead
from fedsurf.paper.artefacts import (
    SURF_T,
    Artifact,
    ArtifactStore,
    describe,
    open_folder,
    read_about,
    slug,
    source_name,
)
from fedsurf.paper.claims import Claim
from fedsurf.paper.estimate import Pace, duration_text, seconds_of, total_seconds
from fedsurf.paper.figures import FIGURES, figures_named
from fedsurf.paper.figures.figure import UNTUNED_KINDS
from fedsurf.paper.report import deviations, write_report
from fedsurf.paper.reproduce import in_order, make_in_processes, reproduce
from fedsurf.paper.sizes import SIZES, parameters_of
from fedsurf.unrolled import UDGD

SMOKE = SIZES["smoke"]
FILES = {"figure.png", "figure.svg", "data.csv", "data.json", "config.json", "claims.json", "audit"}
SAME = ("data.csv", "data.json", "claims.json", "figure.svg")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All figures, made by the command line."""
    folder = tmp_path_factory.mktemp("reproduction") / "all"
    assert run(["reproduce", "all", "--preset", "smoke", "--folder", str(folder)]) == 0
    return folder


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_all_its_files(made, name):
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


def test_the_documentation_lists_all_files(made):
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
        untuned = {curve["label"] for curve in here if curve["kind"] in UNTUNED_KINDS}
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


def test_the_reports_have_every_claim_and_every_audit(made):
    page, text = (made / "report.html").read_text(), (made / "report" / "report.md").read_text()
    for name, figure in FIGURES.items():
        assert (made / "report" / f"{name}.png").is_file()
        assert f"({name}.png)" in text
        assert figure.title in text
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
        assert re.search(r"U-DGD and the classical methods at W_0 ~ N\(0, 1²\)", report)
        assert not re.search(r"\b1 (validation tasks|minutes|artefacts)", report)


def test_the_report_can_be_written_again_from_the_folder(made, capsys):
    before = (made / "report" / "report.md").read_bytes()
    (made / "report" / "report.md").unlink()
    assert run(["reproduce", "report", "--folder", str(made), "--json"]) == 0
    assert (made / "report" / "report.md").read_bytes() == before
    assert json.loads(capsys.readouterr().out).keys() == FIGURES.keys()


@pytest.mark.parametrize("content", [{"other": 1}, [1], 7])
@pytest.mark.parametrize(
    "name",
    ["reproduction.json", "theory/claims.json", "theory/config.json", "theory/data.json"],
)
def test_a_report_on_a_file_with_other_content_is_an_error_that_names_the_file(
    made, tmp_path, name, content, capsys
):
    for part in ("reproduction.json", "theory"):
        source = made / part
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, tmp_path / part)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(FileError, match=rf"^{re.escape(str(tmp_path / name))}: "):
        write_report(tmp_path)
    assert run(["reproduce", "report", "--folder", str(tmp_path)]) == 1
    assert name in capsys.readouterr().err.replace("\n", "")


class StoppedError(Exception):
    """A reproduction is interrupted."""


class Cut:
    """An observer that interrupts meta-training after its first checkpoint."""

    def on_start(self, done, total):
        pass

    def on_step(self, record):
        if record.step == 30:
            raise StoppedError

    def on_validation(self, record, best_by):
        pass


def test_an_interrupted_reproduction_resumes_to_the_same_bits(made, tmp_path):
    """Interrupted once within meta-training, and once between artefacts."""
    figures, folder, lines = figures_named("ablation"), tmp_path / "cut", []
    store = ArtifactStore(folder, SMOKE)
    with pytest.raises(StoppedError):
        reproduce(figures, ArtifactStore(folder, SMOKE, observers=lambda: nullcontext([Cut()])))
    assert not (folder / "ablation").exists()
    assert not store.has(Artifact("optimizer", SMOKE.ablation))

    def stop_at_audit(line):
        if "audit" in line:
            raise StoppedError

    with pytest.raises(StoppedError):
        reproduce(figures, store, resume=True, on_message=stop_at_audit)
    reproduce(figures, store, resume=True, on_message=lines.append)
    assert not any("meta-train" in line for line in lines)  # finished work is not repeated
    for name in SAME:
        here, there = folder / "ablation" / name, made / "ablation" / name
        assert here.read_bytes() == there.read_bytes(), name
    configs = [read(place / "ablation" / "config.json") for place in (folder, made)]
    for config in configs:
        config["made_with"].pop("commit", None)  # there may be a commit in the meantime
    assert configs[0] == configs[1]
    for best in folder.glob("runs/*/best.safetensors"):
        assert best.read_bytes() == (made / best.relative_to(folder)).read_bytes()
    # Resumed again, there is nothing left to make, and nothing changes.
    lines.clear()
    reproduce(figures, store, resume=True, on_message=lines.append)
    assert lines[1].startswith("0 of")
    assert (folder / "ablation" / "data.csv").read_bytes() == (
        made / "ablation" / "data.csv"
    ).read_bytes()


def test_a_folder_in_use_is_refused_without_resume(made, capsys):
    assert run(["reproduce", "theory", "--preset", "smoke", "--folder", str(made)]) == 1
    assert "the folder is not empty" in capsys.readouterr().err


def test_a_folder_into_which_another_reproduction_writes_is_refused(tmp_path):
    with lock_folder(tmp_path), pytest.raises(FileExistsError, match="another process"):
        reproduce(figures_named("theory"), ArtifactStore(tmp_path, SMOKE), resume=True)


def test_a_folder_of_another_size_is_refused(made):
    with pytest.raises(ValueError, match="differs in preset"):
        open_folder(made, {"preset": "paper", "data": {}}, resume=True)


def test_a_figure_with_further_data_may_be_added_but_not_one_with_changed_data(tmp_path):
    folder = tmp_path / "new"
    first, second = {"source": "a", "components": 3}, {"source": "b", "components": None}
    open_folder(folder, {"preset": "smoke", "data": {"cifar10": first}}, resume=False)
    open_folder(folder, {"preset": "smoke", "data": {"mnist": second}}, resume=True)
    assert read_about(folder)["data"] == {"cifar10": first, "mnist": second}
    changed = {"preset": "smoke", "data": {"mnist": {**second, "components": 3}}}
    with pytest.raises(ValueError, match=r"data.mnist.components \(None there, 3 here\)"):
        open_folder(folder, changed, resume=True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["all", "--features", "missing.npz"], 1, "features: got 'missing.npz'"),
        (["all", "--features", "features.csv"], 1, "it must be an .npz file"),
        (["report", "--folder", "nowhere"], 1, "got no figure and no optimizer"),
        (["theory", "--preset", "smoke", "--jobs", "0"], 1, "jobs: got 0"),
    ],
)
def test_errors_name_the_argument(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", *arguments]) == code
    assert message in capsys.readouterr().err


def test_missing_data_is_an_error_that_names_the_alternative(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSURF_HOME", str(tmp_path / "home"))
    assert run(["reproduce", "speed-star", "--preset", "desktop"]) == 3
    assert "--features FILE.npz" in capsys.readouterr().err
    assert not (tmp_path / "reproduction").exists()


def test_ready_made_features_are_used_instead_of_images(tmp_path):
    file = tmp_path / "features.npz"
    np.savez(file, x=np.zeros((4, 3)), y=np.zeros(4, int))
    desktop = SIZES["desktop"].with_features(file, None)
    assert desktop.regular.data == desktop.star.data
    assert desktop.regular.data.source == str(file)
    assert (desktop.regular.data.backbone, desktop.regular.data.components) == ("pca", 32)
    assert desktop.ablation.data.source == "mnist"
    paper = SIZES["paper"].with_features(file, file)
    assert (paper.ablation.data.backbone, paper.ablation.data.components) == ("none", None)
    assert source_name(desktop.regular.data.source) == "features.npz"


def test_the_size_paper_has_the_papers_settings():
    paper = SIZES["paper"]
    assert parameters_of(paper.regular) == pytest.approx(531e6, rel=0.002)
    assert (paper.tasks, paper.rounds, paper.regular.task.agents) == (30, 200, 100)
    for config in (
        paper.regular,
        replace(paper.regular, network=paper.random),
        paper.star,
        paper.ablation,
    ):
        assert deviations(config) == []
    assert any("penalty" in one for one in deviations(SIZES["desktop"].regular))


def test_the_number_of_parameters_is_that_of_the_optimizer():
    model = SoftmaxHead(SMOKE.regular.data.components, 10)
    optimizer = UDGD(model, SMOKE.regular.optimizer, generator(0))
    assert parameters_of(SMOKE.regular) == sum(p.numel() for p in optimizer.parameters())


def test_artefacts_come_once_and_after_those_that_they_need():
    artifacts = in_order(need for figure in FIGURES.values() for need in figure.needs(SMOKE))
    assert len(set(artifacts)) == len(artifacts)
    for place, artifact in enumerate(artifacts):
        assert all(need in artifacts[:place] for need in artifact.needs)


def test_figures_share_optimizers_and_names_tell_them_apart():
    desktop = SIZES["desktop"]
    needs = in_order(need for figure in FIGURES.values() for need in figure.needs(desktop))
    trained = [artifact.trained for artifact in needs if artifact.kind == "optimizer"]
    assert len({describe(config) for config in trained}) == len(trained) == 8


def test_an_artefact_is_identified_by_kind_and_configuration():
    study, other = SMOKE.study_of(SMOKE.regular), SMOKE.study_of(SMOKE.star)
    store = ArtifactStore(Path(), SMOKE)
    audits = Artifact("audit", SMOKE.regular), Artifact("audit", SMOKE.ablation)
    assert store.file(audits[0]) == store.file(audits[1])
    artifacts = [
        Artifact("optimizer", SMOKE.regular),
        Artifact("audit", SMOKE.regular),
        Artifact("optimizer", SMOKE.star),
        Artifact("run", SMOKE.regular, study),
        Artifact("run", SMOKE.regular, other),
        Artifact("method", study=study, method="dgd"),
        Artifact("method", study=study, method="dgd", tuned=True),
        Artifact("pretrained", study=study, rounds=4),
        Artifact("pretrained", study=study, rounds=6),
    ]
    assert len({store.file(artifact) for artifact in artifacts}) == len(artifacts)


def test_other_processes_make_the_same_and_their_errors_are_errors_here(made, tmp_path):
    store, done = ArtifactStore(tmp_path, SMOKE), []
    surf = replace(SMOKE.regular.surf, learning_rate=-1.0)
    broken = Artifact("optimizer", replace(SMOKE.regular, surf=surf))
    certificate = Artifact("certificate", SMOKE.regular)
    (optimizer,) = certificate.needs
    with pytest.raises(ValueError, match="learning_rate: got -1"):
        make_in_processes(
            [certificate, optimizer, broken], store, 1, lambda one, _: done.append(one)
        )
    assert done == [optimizer, certificate]  # the certificate needs the optimizer
    (best,) = tmp_path.glob("runs/*/best.safetensors")
    assert best.read_bytes() == (made / best.relative_to(tmp_path)).read_bytes()
    there = ArtifactStore(made, SMOKE)
    assert store.read(certificate).content == there.read(certificate).content


def test_the_estimate_counts_the_steps_of_meta_training():
    pace = Pace({False: 2.0, True: 3.0}, gradient=0.0, record=0.0)
    surf = replace(SMOKE.regular.surf, steps=100, validate_every=200)
    graph = Artifact("optimizer", replace(SMOKE.regular, surf=surf))
    server = Artifact("optimizer", replace(SMOKE.star, surf=surf))
    assert seconds_of(graph, SMOKE, pace) == 200
    assert seconds_of(server, SMOKE, pace) == 300
    assert total_seconds(SMOKE, [graph, server], pace, 1) == 500
    assert total_seconds(SMOKE, [graph, server], pace, 2) == 300  # an artefact is not divided
    assert [duration_text(s) for s in (2.04, 61, 600, 7200, 3e5)] == [
        "2.0 seconds", "61 seconds", "10 minutes", "2.0 hours", "3.5 days",
    ]  # fmt: skip


def test_an_unfinished_run_is_reported_as_unfinished(tmp_path):
    open_folder(tmp_path, {"preset": "smoke", "data": {}}, resume=False)
    with pytest.raises(ValueError, match="got no figure and no optimizer"):
        write_report(tmp_path)
    store = ArtifactStore(tmp_path, SMOKE, observers=lambda: nullcontext([Cut()]))
    with pytest.raises(StoppedError):
        store.make(Artifact("optimizer", SMOKE.regular))
    assert write_report(tmp_path) == {}
    text = (tmp_path / "report" / "report.md").read_text()
    assert "20 of 40" in text
    assert "No figure is finished yet." in text


def test_reports_escape_names_of_files(tmp_path):
    data = {"source": "a|<b>.npz", "backbone": "none", "components": None, "checksum": "0f"}
    open_folder(tmp_path, {"preset": "smoke", "data": {"mnist": data}}, resume=False)
    ArtifactStore(tmp_path, SMOKE).make(Artifact("optimizer", SMOKE.regular))
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "a|&lt;b&gt;.npz" in page
    assert "<b>" not in page
