"""fedsurf as an app of Flower: a server and its agents, for `flwr run`.

It takes the extra `flower`; nothing here imports Flower before an app is made.
"""

from fedsurf.deploy.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
