"""The server's part: it calls the agents, and writes the classifier."""

from fedsurf.deploy.flower import server_app

app = server_app()
