"""The two parts of a Flower app: a ServerApp and a ClientApp."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedsurf.deploy.flower.plan import Plan
from fedsurf.deploy.flower.rows import Load, loaded_rows, rows_of
from fedsurf.network.engines.messages import RefusedError

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedsurf.estimator.tables import LabelledTable


def server_app() -> ServerApp:
    """Return the ServerApp: it trains with all nodes, as the run configuration says, and writes the results.

    Examples
    --------
    In `server_app.py` of a Flower app:

    >>> from fedsurf.deploy.flower import server_app
    >>> app = server_app()  # doctest: +SKIP
    """
    from flwr.serverapp import ServerApp

    def main(grid: Grid, context: Context) -> None:
        from fedsurf.deploy.flower.serving import serve
        from fedsurf.network.engines.flower.records import GridCourier

        plan = Plan.read(context.run_config)
        report = partial(print, flush=True)
        serve(plan, GridCourier(grid, plan.agents), report).write(plan.folder)
        report(f"written to {Path(plan.folder).absolute()}")

    app = ServerApp()
    app.main()(main)
    return app


def client_app(load: Load | None = None) -> ClientApp:
    """Return the ClientApp: a node trains on its own rows, which stay there.

    Parameters
    ----------
    load : callable or None
        Returns a node's features `[rows, features]` and labels `[rows]` from Flower's context. By default
        they are read from the table that the node config names, `data="clinic.csv"`, or else from the
        node's part of the run config's table.

    Examples
    --------
    In `client_app.py` of a Flower app, with rows from elsewhere:

    >>> from sklearn.datasets import load_iris
    >>> def load(context):
    ...     x, y = load_iris(return_X_y=True)
    ...     mine = slice(context.node_config["partition-id"], None, context.node_config["num-partitions"])
    ...     return x[mine], y[mine]
    >>> from fedsurf.deploy.flower import client_app
    >>> app = client_app(load)  # doctest: +SKIP
    """
    from flwr.clientapp import ClientApp

    def train(message: Message, context: Context) -> Message:
        return reply_to(message, context, load)

    app = ClientApp()
    app.train()(train)
    return app


def reply_to(message: Message, context: Context, load: Load | None = None) -> Message:
    """Return a node's reply to a message of the server."""
    from flwr.app import Message

    from fedsurf.deploy.flower.site import answer
    from fedsurf.network.engines.flower.parcels import Parcel
    from fedsurf.network.engines.flower.records import from_records, to_records

    plan, node = Plan.read(context.run_config), context.node_config
    agent = node.get("partition-id")
    if type(agent) is not int or not 0 <= agent < plan.agents:
        raise ValueError(
            f"partition-id: got {agent!r} in the node config, but it must be a whole number from 0 to "
            f"{plan.agents - 1}"
        )
    name, data = str(node.get("name", "")), str(node.get("data", ""))
    folder = node.get("folder") or Path(plan.state_folder) / f"agent-{agent}"
    try:
        parcel = from_records(message.content)[0]
    except RefusedError as error:
        return Message(to_records(Parcel(note=f"refused: {error}"), agent, name), reply_to=message)

    def read() -> LabelledTable:
        return rows_of(agent, data, plan) if load is None else loaded_rows(load, context, plan)

    reply = answer(parcel, plan, agent, context.run_id, Path(str(folder)), read)
    return Message(to_records(reply, agent, name), reply_to=message)
