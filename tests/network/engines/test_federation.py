"""Federations as files: what is read, every problem by its line, the digest, and the network."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from federations import a_federation, changed, write_federation
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsurf
from fedsurf.common.files import FileError
from fedsurf.estimator.federations import federation_network
from fedsurf.network.engines.config import Agent, Links, Server, host_and_port
from fedsurf.network.engines.federation import (
    digest,
    graph_of,
    network_of,
    problems,
    read_federation,
)
from fedsurf.network.engines.memory import run_parts

KINDS = ["regular", "erdos-renyi", "ring", "torus", "complete", "small-world", "star"]
AGENT_1 = 'name = "agent-1"'
ADDRESS_1 = 'address = "127.0.0.1:17401"'
KIND = 'kind = "ring"'


def test_files_with_links_are_read_and_keys_made_without_torch(tmp_path):
    path = changed(write_federation(tmp_path, agents=2), (KIND, 'links = [["agent-1", "agent-2"]]'))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from fedsurf.network.engines import federation, keys, template\n"
        f"found = federation.read_federation({str(path)!r})\n"
        f"print(keys.make_keys(found, Path({str(tmp_path / 'keys')!r})), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['agent-1', 'agent-2'] False\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_file_is_sound_and_holds_what_was_asked(tmp_path, kind):
    options = {
        "seed": 3,
        "wire": "int8",
        "rounds": 30,
        "label": 'kind of "wine" \\ é',
        "optimizer": "softmax-head",
    }
    path = write_federation(tmp_path, "ring" if kind == "regular" else kind, 6, **options)
    if kind == "small-world":
        changed(path, ("degree = 3", "degree = 4"))
    if kind == "erdos-renyi":
        changed(path, ("probability = 0.1", "probability = 0.6"))
    assert problems(path) == []
    found = read_federation(path)
    assert (found.seed, found.training.rounds, found.data.label) == (3, 30, options["label"])
    assert len(found.agents) == 6
    assert found.wire == network_of(found).wire == "int8"
    assert (found.server is not None) == (kind == "star")
    assert found.security.certificates == tmp_path / "keys"


def test_all_fields_are_read(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text(
        """
        name = "f"
        agents = [{name = "a", address = "a.example.org:1"}, {name = "b", address = "[::1]:2"}]
        wire = "float16"
        server = {name = "hub", address = "10.0.0.1:3", reporting = 1, calling = "random"}
        data = {label = "y", classes = ["no", "yes"], features = ["x", "z"]}
        deadlines = {round = 5, start = 60.5, lease = 1, late = "renormalised"}
        security = {certificates = "/etc/keys", insecure = false}
        """
    )
    found = read_federation(path)
    assert [node.name for node in found.nodes] == ["hub", "a", "b"]
    assert found.server == Server("10.0.0.1:3", "hub", 1, "random")
    assert (found.data.classes, found.data.features) == (("no", "yes"), ("x", "z"))
    assert (found.deadlines.round, found.deadlines.late) == (5.0, "renormalised")
    assert found.security.certificates == Path("/etc/keys")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (AGENT_1, 'name = "agent-2"', "agents: got the name 'agent-2' more than once"),
        (AGENT_1, 'name = "Agent-2"', "agents: got the name 'agent-2' more than once"),
        (AGENT_1, 'name = "a/b"', "agents #1.name: got 'a/b', but it must be 1 to 64 of the"),
        (AGENT_1, 'name = ".."', "agents #1.name: got '..', but"),
        (AGENT_1, 'name = "é"', "agents #1.name: got 'é', but"),
        (AGENT_1, 'name = "authority"', "agents #1.name: got 'authority', but that is the folder"),
        ('name = "clinics"', 'name = "a b"', "name: got 'a b', but"),
        (ADDRESS_1, 'address = "127.0.0.1"', "address of agent-1: got '127.0.0.1', but it must be"),
        (ADDRESS_1, 'address = "127.0.0.1:0"', "address of agent-1: got '127.0.0.1:0'"),
        (ADDRESS_1, 'address = "256.0.0.1:80"', "address of agent-1: got '256.0.0.1:80'"),
        (ADDRESS_1, 'address = "a?b=c:80"', "address of agent-1: got 'a?b=c:80'"),
        (ADDRESS_1, 'address = "::1:80"', "address of agent-1: got '::1:80'"),
        (ADDRESS_1, 'address = "10.0.0.1:80"', "security.insecure: got true, but agent-1 at 10.0"),
        (ADDRESS_1, 'adress = "127.0.0.1:17401"', "agents #1.address: is missing"),
        (ADDRESS_1, ADDRESS_1 + '\nadress = "x"', "agents #1.adress: there is no such field; did"),
        (ADDRESS_1, "address = 5", "agents #1.address: got 5, but it must be str"),
        (KIND, 'links = [["agent-1", "agent-9"]]', "graph.links #1: got 'agent-9', but the agents"),
        (
            KIND,
            'links = [["agent-1"]]',
            "graph.links #1: got ['agent-1'], but it must be the names",
        ),
        (KIND, 'links = [["agent-1", "agent-1"]]', "graph.links #1: got ['agent-1', 'agent-1']"),
        (
            KIND,
            'links = [["agent-1", "agent-3"], ["agent-2", "agent-4"]]',
            "graph.links: got 2 parts without a link between them, but all agents must be connected: "
            "agent-1, agent-3; agent-2, agent-4",
        ),
        (KIND, "", "graph: got neither of kind and links"),
        (KIND, KIND + '\nlinks = [["agent-1", "agent-2"]]', "graph: got both of kind and links"),
        (KIND, 'kind = "rign"', "graph.kind: got 'rign', but it must be 'regular' or"),
        (KIND, 'kind = "star"', "graph.kind: got 'star', but a star takes a table [server]"),
        (KIND, 'kind = "regular"\ndegree = 4', "graph: degree: got 4 for 4 agents"),
        (KIND, 'kind = "small-world"', "graph: degree: got 3 for 4 agents"),
        (
            KIND,
            'kind = "erdos-renyi"\nprobability = 0.0',
            "graph: probability: got 0.0, with which",
        ),
        (KIND, KIND + "\n[server]\naddress = '127.0.0.1:1'", "graph, server: got both, but"),
        ("rounds = 20", "rounds = 0", "training.rounds: got 0, but it must be at least 1"),
        ("rounds = 20", "rounds = 2.5", "training.rounds: got 2.5, but it must be int"),
        ('"softmax-head"', '"mine.safetensors"', "training.optimizer: got '"),
        ('label = "label"', 'label = ""', "data.label: got ''"),
        ('# classes = ["ill", "well"]', 'classes = ["ill"]', "data.classes: got 'ill' only"),
        ('# classes = ["ill", "well"]', "classes = [1, 1, 2]", "data.classes: got '1' more than"),
        ('# classes = ["ill", "well"]', "classes = [1.5]", "data.classes #1: got 1.5, but it must"),
        ('# features = ["age", "weight"]', 'features = ["a", "a"]', "data.features: got 'a' more"),
        (
            '# features = ["age", "weight"]',
            'features = ["label"]',
            "data.features: got 'label', but",
        ),
        ("round = 10.0", "round = 2.0", "deadlines.round: got 2 s, but it must be longer than the"),
        ("round = 10.0", "round = nan", "deadlines.round: got nan, but it must be a finite number"),
        ("start = 600.0", "start = 0", "deadlines.start: got 0.0, but"),
        ("start = 600.0", "start = true", "deadlines.start: got True, but it must be float"),
        ('"renormalised"', '"dropped"', "deadlines.late: got 'dropped', but it must be"),
        ("insecure = true", "insecure = false", "security.certificates: there is no folder"),
        ("seed = 0", "sede = 0", "sede: there is no such field; did you mean 'seed'?"),
        ("seed = 0", 'data = "x"\n#', "data: got 'x', but it must be a table of fields"),
        ("seed = 0", "seed = ", "truncated, damaged or not TOML"),
    ],
)
def test_every_problem_is_a_line(tmp_path, old, new, line):
    path = write_federation(tmp_path)
    if new.startswith("data ="):
        path.write_text(path.read_text().replace("[data]", "[data_of_sites]"))
    found = problems(changed(path, (old, new)))
    assert any(each.removeprefix(f"{path}: ").startswith(line) for each in found), found
    assert all(each.isprintable() for each in found)
    if line.startswith("security"):  # of this machine, not of the file
        read_federation(path)
        return
    with pytest.raises(FileError) as caught:
        read_federation(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_problems_of_a_server(tmp_path):
    path = write_federation(tmp_path, "star", reporting=5)
    (line,) = problems(path)
    assert line.startswith("server.reporting: got 5, but it must be between 1 and 4")
    changed(path, ("reporting = 5", ""), ('name = "server"', 'name = "agent-3"'))
    (line,) = problems(path)
    assert line.startswith("agents: got the name 'agent-3' more than once")


def test_a_name_that_is_used_twice_is_the_only_problem_of_its_links(tmp_path):
    links = 'links = [["agent-1", "agent-2"], ["agent-2", "agent-3"], ["agent-3", "agent-1"]]'
    path = changed(write_federation(tmp_path), (KIND, links), ('"agent-4"', '"agent-3"'))
    assert [line.partition(":")[0] for line in problems(path)] == ["agents"]


def test_all_problems_are_listed_together(tmp_path):
    path = changed(
        write_federation(tmp_path),
        (AGENT_1, 'name = "a b"'),
        (ADDRESS_1, 'address = "10.0.0.1:1"'),
        ("round = 10.0", "round = 1.0"),
        ("rounds = 20", "rounds = -1"),
    )
    assert len(problems(path)) == 4
    changed(path, ("seed", "sead"), ("rounds = -1", 'rounds = "x"'))
    assert len(problems(path)) == 2  # fields first


def test_names_of_sites_and_optimizers_that_do_not_exist(tmp_path):
    path = write_federation(tmp_path)
    assert problems(path, ["agent-1"], optimizers=["softmax-head"]) == []
    assert problems(path, ["agent-9"])[0].startswith("agents: there is no 'agent-9'; there are")
    (line,) = problems(path, optimizers=["another"])
    assert line.startswith("training.optimizer: got 'softmax-head', but it must be another, or")


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "large.toml"
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(FileError, match="bytes, but TOML must have at most"):
        read_federation(path)


_POSITION = st.floats(0, 1, exclude_max=True)
_VALUES = st.sampled_from(
    [
        b"0",
        b"[]",
        b"{}",
        b'""',
        b"nan",
        b"1979-05-27",
        b"[[[",
        b"true",
        b"9" * 30,
        b"\xff",
        b"\n",
        b"=",
    ]
)


def check_complaint(path):
    """Read a file, and make its network; or get an error that names it, and a line from `problems`."""
    try:
        network_of(read_federation(path))
    except FileError as error:
        complaint = str(error)
    else:
        return
    assert complaint.startswith(str(path))
    assert complaint.isprintable()
    assert problems(path)


@settings(max_examples=100)
@given(edits=st.lists(st.tuples(_POSITION, st.integers(0, 20), _VALUES | st.binary(max_size=4))))
def test_a_mutated_file_gives_a_file_error_or_a_federation(edits):
    with TemporaryDirectory() as folder:
        path = write_federation(Path(folder))
        content = path.read_bytes()
        for position, width, value in edits:
            at = int(position * len(content))
            content = content[:at] + value + content[at + width :]
        path.write_bytes(content)
        check_complaint(path)


@settings(max_examples=100)
@given(line=st.integers(0, 60), value=_VALUES)
def test_a_value_of_another_kind_gives_a_file_error_or_a_federation(line, value):
    with TemporaryDirectory() as folder:
        path = write_federation(Path(folder))
        lines = path.read_bytes().splitlines()
        place = line % len(lines)
        lines[place] = lines[place].partition(b"=")[0] + b"= " + value
        path.write_bytes(b"\n".join(lines))
        check_complaint(path)


def test_the_digest_is_of_what_must_agree(tmp_path):
    one = a_federation()
    moved = replace(one, agents=(Agent("clinic-1", "10.0.0.9:1"), *one.agents[1:]))
    keys = replace(one, security=replace(one.security, certificates=tmp_path))
    patient = replace(one, deadlines=replace(one.deadlines, start=1.0))
    assert {digest(same) for same in (one, moved, keys, patient)} == {digest(one)}
    others = [
        replace(one, name="other"),
        replace(one, seed=1),
        replace(one, agents=one.agents[::-1]),
        replace(one, graph=Links("complete")),
        replace(one, graph=None, server=Server("10.0.0.1:1")),
        replace(one, training=replace(one.training, rounds=21)),
        replace(one, data=replace(one.data, features=("a",))),
        replace(one, deadlines=replace(one.deadlines, late="stale")),
    ]
    assert len({digest(each) for each in [one, *others]}) == 1 + len(others)


def test_the_digest_holds_the_content_of_an_optimizer_and_not_its_place(tmp_path):
    digests = []
    for place, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        path = tmp_path / f"{place}.safetensors"
        path.write_bytes(content)
        one = a_federation()
        digests.append(digest(replace(one, training=replace(one.training, optimizer=str(path)))))
    assert digests[0] == digests[1] != digests[2]
    path.unlink()
    with pytest.raises(FileError, match=r"c\.safetensors: there is no such file"):
        digest(replace(one, training=replace(one.training, optimizer=str(path))))


@pytest.mark.parametrize("kind", ["regular", "erdos-renyi", "star"])
def test_the_network_is_that_of_the_classifier(kind):
    agents = tuple(Agent(f"site-{number}", f"10.0.0.{number}:1") for number in range(1, 9))
    federation = replace(a_federation(), agents=agents, graph=Links(kind, 3, 0.5), seed=4)
    if kind == "star":
        federation = replace(federation, graph=None, server=Server("10.0.0.9:1", reporting=3))
    reporting = 3 if kind == "star" else None
    random = fedsurf.generator(4, "graph")
    options = {"probability": 0.5, "reporting": reporting, "calling": "in-turn"}
    expected = federation_network(kind, list(range(8)), random, **options)
    found = network_of(federation)
    assert torch.equal(found.links, expected.links)
    assert (found.shift, found.ids.tolist()) == (expected.shift, expected.ids.tolist())
    if kind == "star":
        assert [found.call().agents.tolist() for _ in range(4)] == [
            expected.call().agents.tolist() for _ in range(4)
        ]


def test_links_are_numbered_in_the_order_of_the_file():
    links = Links(
        links=(("clinic-4", "clinic-1"), ("clinic-2", "clinic-3"), ("clinic-1", "clinic-3"))
    )
    graph = graph_of(replace(a_federation(), graph=links))
    assert list(graph) == [0, 1, 2, 3]
    assert {frozenset(edge) for edge in graph.edges} == {
        frozenset(edge) for edge in [(0, 3), (1, 2), (0, 2)]
    }


def test_parts_of_the_network_at_every_site_mix_as_the_whole():
    federation = a_federation()
    whole = network_of(federation)
    values = torch.arange(8.0, dtype=torch.float64).reshape(4, 2)
    parts = run_parts(network_of(federation), torch.arange(4), lambda p: p.mix(values[p.ids]))
    torch.testing.assert_close(torch.cat(parts), whole.mix(values))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("a-b.c:80", ("a-b.c", 80)),
        ("[a]:80", None),
        ("a:", None),
        ("a:65536", None),
        ("a:٣", None),
        (":80", None),
        ("-a:80", None),
        ("1.2.3:80", None),
    ],
)
def test_addresses(address, expected):
    if expected:
        assert host_and_port(address) == expected
        return
    with pytest.raises(ValueError, match="must be a host and a port"):
        host_and_port(address)


def test_agents_may_share_an_address_but_not_the_servers(tmp_path):
    path = write_federation(tmp_path, "star")
    assert problems(changed(path, ("127.0.0.1:17402", "127.0.0.1:17401"))) == []
    [found] = problems(changed(path, ("127.0.0.1:17403", "127.0.0.1:17400")))
    assert found == "address of agent-3: got '127.0.0.1:17400', which is that of the server"
