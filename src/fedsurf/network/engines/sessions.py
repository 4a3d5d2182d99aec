"""Sessions of Zenoh between the processes of a federation: connections, certificates, access lists."""

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import zenoh

from fedsurf.network.engines.config import on_loopback


class Certificates(NamedTuple):
    """Paths of what a process needs for TLS, as PEM; the certificate's common name is the process's name."""

    authority: str | Path
    certificate: str | Path
    key: str | Path


def open_session(
    name: str,
    addresses: Mapping[str, str],
    neighbours: Iterable[str],
    root: str,
    *,
    lease: float,
    max_bytes: int,
    tls: Certificates | None,
    listen: str | None = None,
) -> zenoh.Session:
    """Open the session of a process, which connects to those neighbours that come before it.

    Messages for a process have keys `root/to/<receiver>/<sender>`, tokens `root/alive/<name>/<digest>`.
    With TLS, a neighbour may send under its own name only, and read only what is sent to it; anybody else
    nothing.

    Parameters
    ----------
    name : str
        The name of the process.
    addresses : mapping from str to str
        "host:port" of every process by name, in the order of their numbers.
    neighbours : iterable of str
        The processes that it exchanges messages with.
    lease : float
        Seconds after which a silent neighbour is dead.
    max_bytes : int
        Size of the largest message.
    listen : str or None
        "host:port" on which it listens, if not its address.
    """
    scheme, order, neighbours = "tls" if tls else "tcp", list(addresses), list(neighbours)
    earlier = [one for one in neighbours if order.index(one) < order.index(name)]
    milliseconds = round(1000 * lease)
    settings: dict[str, object] = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "listen/endpoints": [f"{scheme}/{listen or addresses[name]}"],
        "connect/endpoints": [f"{scheme}/{addresses[one]}" for one in earlier],
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {
            "period_init_ms": 100,
            "period_max_ms": 1000,
            "period_increase_factor": 2,
        },
        "transport/link/protocols": [scheme],
        "transport/link/tx/lease": milliseconds,
        # A neighbour that takes nothing is given up after the lease, in microseconds.
        "transport/link/tx/queue/congestion_control/block/wait_before_close": 1000 * milliseconds,
        "transport/link/rx/max_message_size": max_bytes + 2**16,
        "transport/shared_memory/enabled": False,
    }
    if tls is not None:
        authority, certificate, key = map(str, tls)
        settings["transport/link/tls"] = {
            "root_ca_certificate": authority,
            "enable_mtls": True,
            "listen_private_key": key,
            "listen_certificate": certificate,
            "connect_private_key": key,
            "connect_certificate": certificate,
            "verify_name_on_connect": True,
        }
        settings["access_control"] = access_lists(name, neighbours, root)
    config = zenoh.Config()
    for place, value in settings.items():
        config.insert_json5(place, json.dumps(value))
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = str(error).partition(" at ")[0]
        raise ConnectionError(f"{name} at {listen or addresses[name]}: {reason}") from error


def access_lists(name: str, neighbours: Iterable[str], root: str) -> dict[str, object]:
    """Return what a process and its neighbours, known by their certificates, may send and read."""
    rules, subjects, policies = [], [], []
    inwards, outwards = ["ingress"], ["egress"]
    for other in neighbours:
        allowed = {
            "receive": (["put"], inwards, f"{root}/to/{name}/{other}"),
            "send": (["put"], outwards, f"{root}/to/{other}/{name}"),
            "listens": (["declare_subscriber"], inwards, f"{root}/to/{other}/*"),
            "listen": (["declare_subscriber"], outwards, f"{root}/to/{name}/*"),
            "lives": (["liveliness_token"], inwards, f"{root}/alive/{other}/*"),
            "live": (["liveliness_token"], outwards, f"{root}/alive/{name}/*"),
            "watch": (
                ["liveliness_query", "declare_liveliness_subscriber"],
                inwards + outwards,
                f"{root}/alive/*/*",
            ),
        }
        rules += [
            {
                "id": f"{rule} {other}",
                "messages": messages,
                "flows": flows,
                "permission": "allow",
                "key_exprs": [key],
            }
            for rule, (messages, flows, key) in allowed.items()
        ]
        subjects.append({"id": other, "cert_common_names": [other]})
        policies.append({"rules": [f"{rule} {other}" for rule in allowed], "subjects": [other]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def check_private(addresses: Mapping[str, str], insecure: bool) -> None:
    """Raise if messages without TLS would leave this machine, or warn if that is wanted."""
    far = [address for address in addresses.values() if not on_loopback(address)]
    if far and not insecure:
        raise ValueError(
            f"tls: got None with the address {far[0]}, but without certificates messages must stay on "
            "this machine (127.0.0.1); give certificates, or insecure=True"
        )
    if far:
        warnings.warn(
            "This federation is insecure: anybody on the network can read its messages and send others",
            stacklevel=3,
        )
