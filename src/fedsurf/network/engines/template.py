"""The text of a new federation's file, with comments."""

import json
from string import Template

from fedsurf.network.config import Calling, GraphConfig, Wire

FIRST_PORT = 17400
"""Port of the server; the agents have the next ones."""

_TEXT = Template("""\
# A federation: the same file at every site. `fedsurf federation check` says what is wrong with it.
name = $name
seed = $seed                  # of the graph, the server's calls and mini-batches
wire = $wire          # numbers in messages: "float32", or rounded to "float16" or "int8"

[training]
optimizer = $optimizer  # a pretrained optimizer, or a .safetensors file
rounds = $rounds               # rounds of communication

[data]                    # what every site's table has
label = $label
# classes = ["ill", "well"]       # without it, all that one of the sites has
# features = ["age", "weight"]    # without it, all columns but the label

[deadlines]               # in seconds
round = 10.0              # longest wait for the others in a round; longer than the lease
start = 600.0             # longest wait for the others at the start
lease = 2.0               # silence after which a connection counts as dead
late = "renormalised"     # a late row: go without it, or "stale": use the sender's last one

[security]
certificates = "keys"     # folder of the certificates that `fedsurf federation keys` makes
insecure = $insecure          # true: no encryption, for trials on one machine only

$topology

# The sites that hold data: the name is also that of the certificate; the others reach the site at host:port.
$agents""")

_GRAPH = Template("""\
[graph]                   # who is linked to whom
kind = $kind$fields
# or, in place of kind, by name: links = [["agent-1", "agent-2"], ["agent-2", "agent-3"]]""")

_SERVER = Template("""\
[server]                  # it holds no data
name = "server"
address = $address
$reporting
calling = $calling       # every agent once before any is called again, or "random" """)


def federation_text(
    name: str,
    agents: int,
    graph: GraphConfig,
    *,
    seed: int = 0,
    reporting: int | None = None,
    calling: Calling = "in-turn",
    wire: Wire = "float32",
    optimizer: str = "softmax-head",
    rounds: int = 20,
    label: str = "label",
    insecure: bool = False,
) -> str:
    """Return the text of a federation whose sites are all on this machine; a star's has a server.

    Examples
    --------
    >>> print(federation_text("clinics", 2, GraphConfig("ring")).splitlines()[1])
    name = "clinics"
    """
    sites = [
        f"[[agents]]\nname = {_quoted(f'agent-{number}')}\naddress = {_address(number)}\n"
        for number in range(1, agents + 1)
    ]
    if graph.kind == "star":
        called = f"reporting = {reporting}" if reporting else "# reporting = 5"
        topology = _SERVER.substitute(
            address=_address(0),
            reporting=f"{called:<25} # agents that report in a round; without it, all",
            calling=_quoted(calling),
        )
    else:
        used = {"regular": ["degree"], "erdos-renyi": ["probability"]}
        used["small-world"] = ["degree", "probability"]
        names = used.get(graph.kind, [])
        fields = "".join(f"\n{name} = {getattr(graph, name)}" for name in names)
        topology = _GRAPH.substitute(kind=_quoted(graph.kind), fields=fields)
    return _TEXT.substitute(
        name=_quoted(name),
        seed=seed,
        wire=_quoted(wire),
        optimizer=_quoted(optimizer),
        rounds=rounds,
        label=_quoted(label),
        insecure="true" if insecure else "false",
        topology=topology.rstrip(),
        agents="\n".join(sites),
    )


def _address(number: int) -> str:
    return _quoted(f"127.0.0.1:{FIRST_PORT + number}")


def _quoted(text: str) -> str:
    """Return text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
