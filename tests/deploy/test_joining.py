"""Sites in processes of their own, with certificates, train one classifier on rows that stay with them."""

import json

import numpy as np
import pandas as pd
import pytest
import sites

from fedsurf import FederatedClassifier
from fedsurf.common.files import FileError
from fedsurf.deploy.joining import join
from fedsurf.deploy.sites import join_tables
from fedsurf.estimator.saved import SavedClassifier
from fedsurf.network.config import GraphConfig
from fedsurf.network.engines.config import Agent, Federation, Links, Security
from fedsurf.network.engines.federation import read_federation
from fedsurf.network.engines.template import federation_text

FOUR = (0, 100, 230, 330, 450)


def check_head(path, name, model):
    wanted = np.concatenate([model.coef_, model.intercept_[:, None]], 1)
    size = np.abs(wanted).max()
    np.testing.assert_allclose(sites.head(path, name), wanted, rtol=0, atol=1e-5 * size)


@pytest.fixture
def federation(tmp_path):
    """The file of a ring of four sites with certificates, and their tables."""
    return sites.found(tmp_path, "ring", FOUR)


def test_eight_sites_get_the_classifier_of_the_simulator(tmp_path):
    path = sites.found(tmp_path)
    with sites.sites(path, "--json") as processes:
        for code, printed, errors in sites.finish(processes.values()):
            assert code == 0, errors
            assert json.loads(printed)["rounds"] == 20
            assert json.loads(printed)["missing"] == []
    x, y, agents = sites.together(path)
    model = FederatedClassifier().fit(x, y, agents=agents)
    for place, name in enumerate(processes):
        check_head(path, name, model)
        own = SavedClassifier.read(tmp_path / f"run-{name}" / f"own-{name}.safetensors")
        size = np.abs(model.coef_).max()
        np.testing.assert_allclose(own.weight, model.agent_coef_[place], rtol=0, atol=1e-5 * size)
        messages = json.loads((tmp_path / f"run-{name}" / "messages.json").read_text())
        assert len(messages["bytes_sent"]) == 3
        assert min(messages["bytes_sent"].values()) > 10_000
        assert not (tmp_path / f"run-{name}" / "state.safetensors").exists()


def test_a_server_that_calls_five_of_eight_gives_the_classifier_of_the_simulator(tmp_path):
    path = sites.found(tmp_path, "star", reporting=5, rounds=10)
    with sites.sites(path, "--json") as processes:
        for code, printed, errors in sites.finish(processes.values()):
            assert code == 0, errors
            assert json.loads(printed)["missing"] == []
    x, y, agents = sites.together(path)
    model = FederatedClassifier(graph="star", reporting=5, rounds=10).fit(x, y, agents=agents)
    for name in processes:
        check_head(path, name, model)


def test_one_process_may_hold_two_sites_and_judges_each_on_its_own_rows(tmp_path):
    path = sites.found(tmp_path, "ring", FOUR)
    text = path.read_text()
    first, second, *_ = read_federation(path).agents
    path.write_text(text.replace(second.address, first.address))
    words = sites.command(path, first.name, "--json")
    place = words.index("--as")
    words[place + 1 : place + 4] = [
        *(first.name, second.name, "--data"),
        *(path.parent / f"{one.name}.csv" for one in (first, second)),
    ]
    words[words.index("--test-share") + 1] = "0.25"
    others = [sites.start(path, name) for name in ("agent-3", "agent-4")]
    try:
        together = sites.run(words)
        [(code, printed, errors), *rest] = sites.finish([together, *others])
    finally:
        for one in others:
            one.kill()
    assert code == 0, errors
    assert [end[0] for end in rest] == [0, 0]
    found = json.loads(printed)["sites"]
    assert [site["name"] for site in found] == [first.name, second.name]
    assert all(site["test_rows"] > 0 and site["together"] > 0.8 for site in found)
    assert found[0]["alone"] > 0.8
    assert found[1]["alone"] is None  # one class only


@pytest.mark.slow  # it waits until the start is over
def test_a_site_that_never_comes_is_named_and_nobody_starts(federation):
    federation.write_text(federation.read_text().replace("start = 60", "start = 12"))
    *there, away = [agent.name for agent in read_federation(federation).agents]
    for code, _, errors in sites.finish([sites.start(federation, name) for name in there]):
        assert code == 1
        assert f"{away}: no answer, so training does not start" in errors
    assert not list(federation.parent.glob("run-*/*.safetensors"))


def test_other_features_at_a_site_are_named_and_nobody_starts(federation):
    names = [agent.name for agent in read_federation(federation).agents]
    table = pd.read_csv(federation.parent / f"{names[2]}.csv")
    table = table.rename(columns={"mean radius": "radius"})
    table.to_csv(federation.parent / f"{names[2]}.csv", index=False)
    for code, _, errors in sites.finish([sites.start(federation, name) for name in names]):
        assert code == 1
        assert f"{names[2]} has features radius in place of mean radius" in errors


def test_a_site_with_another_file_is_told_and_the_others_wait_for_it(federation, tmp_path):
    text = federation.read_text()
    names = [agent.name for agent in read_federation(federation).agents]
    other = tmp_path / "other.toml"
    other.write_text(text.replace("rounds = 20", "rounds = 30"))
    processes = [sites.start(federation, name) for name in names[1:]]
    try:
        words = sites.command(federation, names[0])
        words[1] = other
        [(code, _, errors)] = sites.finish([sites.run(words)])
        assert code == 1
        assert "got another federation there than here; compare the files" in errors
        right = sites.start(federation, names[0])
        for code, _, errors in sites.finish([right, *processes]):
            assert code == 0, errors
    finally:
        for process in processes:
            process.kill()


def test_names_are_those_of_one_address():
    agents = tuple(Agent(f"a{n}", f"127.0.0.1:{7460 + n // 2}") for n in range(4))
    both = Federation("both", agents, Links("ring"), security=Security(insecure=True))
    for names, wanted in [((), "got none"), (("b",), "got b"), (("a0",), "a0, a1 have their")]:
        with pytest.raises(ValueError, match=f"names: .*{wanted}"):
            join(both, *names)
    with pytest.raises(ValueError, match="one process is for all agents of one address"):
        join(both, "a0", "a2")


def test_a_table_without_a_feature_of_the_federation_is_refused(federation):
    text = federation.read_text().replace("[data]", '[data]\nfeatures = ["size"]')
    federation.write_text(text)
    name = read_federation(federation).agents[0].name
    with pytest.raises(FileError, match="lacks the features size"):
        join_tables(federation, [name], [federation.parent / f"{name}.csv"])


def test_features_and_classes_of_the_file_are_those_of_the_classifier(tmp_path):
    text = federation_text("one", 1, GraphConfig("complete"), insecure=True, rounds=4)
    text = text.replace("[data]", '[data]\nfeatures = ["b", "a"]\nclasses = [3, 1, 2]')
    text = text.replace("17401", str(sites.free_ports(1)[0]))
    (tmp_path / "f.toml").write_text(text)
    rows = "\n".join(f"{n % 5},{n},{n % 3},{1 + n % 2}" for n in range(20))
    (tmp_path / "t.csv").write_text(f"a,other,b,label\n{rows}\n")
    result = join_tables(tmp_path / "f.toml", ["agent-1"], [tmp_path / "t.csv"])
    assert result.fit.saved.features == ["b", "a"]
    assert result.fit.saved.classes == [1, 2, 3]
    (tmp_path / "t.csv").write_text(f"a,other,b,label\n{rows}\n0,0,0,7\n")
    with pytest.raises(ValueError, match="got the label 7, but classes are 1, 2, 3"):
        join_tables(tmp_path / "f.toml", ["agent-1"], [tmp_path / "t.csv"], test_share=0)


def test_a_column_called_agent_is_a_feature_like_others(tmp_path):
    text = federation_text("one", 1, GraphConfig("complete"), insecure=True, rounds=2)
    (tmp_path / "f.toml").write_text(text.replace("17401", str(sites.free_ports(1)[0])))
    rows = "\n".join(f"{n % 5},{n},{1 + n % 2}" for n in range(20))
    (tmp_path / "t.csv").write_text(f"size,agent,label\n{rows}\n")
    result = join_tables(tmp_path / "f.toml", ["agent-1"], [tmp_path / "t.csv"])
    assert result.fit.saved.features == ["size", "agent"]


def test_a_run_goes_on_with_the_same_rows_only(tmp_path):
    x, y, _ = load_rows()
    file = tmp_path / "state.safetensors"
    stopped = FederatedClassifier(n_agents=4, rounds=6)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.fit(x, y, state_file=file, on_layer=stop)
    with pytest.raises(FileError, match="of a run with other rows, settings or links"):
        FederatedClassifier(n_agents=4, rounds=6).fit(x + 1, y, state_file=file)
    with pytest.raises(FileError, match="of a run with other rows, settings or links"):
        FederatedClassifier(n_agents=4, rounds=8).fit(x, y, state_file=file)
    resumed = FederatedClassifier(n_agents=4, rounds=6).fit(x, y, state_file=file)
    whole = FederatedClassifier(n_agents=4, rounds=6).fit(x, y)
    assert np.array_equal(resumed.coef_, whole.coef_)
    for name, values in whole.trajectory_.items():
        assert np.array_equal(resumed.trajectory_[name], values)


def load_rows():
    parts, _ = sites.tables()
    rows = pd.concat(parts)
    return rows.drop(columns="label").to_numpy(), rows["label"].to_numpy(), None


def test_a_certificate_of_another_site_is_named_before_anything_starts(federation):
    first, second, *_ = read_federation(federation).agents
    keys = federation.parent / "keys"
    for file in (keys / first.name).iterdir():
        (keys / second.name / file.name).replace(file)
    with pytest.raises(FileError, match="has the common name agent-2, but it must be 'agent-1'"):
        join(federation, first.name)
