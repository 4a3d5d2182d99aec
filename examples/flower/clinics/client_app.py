"""A node's part: it trains on its own rows, which stay where they are.

The rows are those of the table in the node config, `data="clinic.csv"`, or else the node's part of the table
in the run config. To read them from elsewhere: `client_app(load)`, where `load(context)` returns x and y.
"""

from fedsurf.deploy.flower import client_app

app = client_app()
