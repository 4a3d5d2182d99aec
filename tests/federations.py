"""Files of federations, for tests."""

from pathlib import Path

from fedsurf.network.config import GraphConfig
from fedsurf.network.engines.federation import Agent, Federation, Links
from fedsurf.network.engines.template import federation_text

HOSTS = "127.0.0.1:17401", "localhost:17402", "[::1]:17403", "clinic.example.org:17404"


def a_federation(hosts=HOSTS):
    """Return a ring of agents with addresses of every kind."""
    agents = tuple(Agent(f"clinic-{number}", host) for number, host in enumerate(hosts, 1))
    return Federation("clinics", agents, Links("ring"))


def write_federation(folder: Path, kind="ring", agents=4, **options) -> Path:
    """Write a sound federation on loopback."""
    path = folder / "clinics.toml"
    options = {"insecure": True} | options
    path.write_text(federation_text("clinics", agents, GraphConfig(kind), **options))
    return path


def changed(path: Path, *changes: tuple[str, str]) -> Path:
    """Replace text in a file."""
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)
    return path
