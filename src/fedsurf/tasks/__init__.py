"""Tasks: sources of data, their features, and the federated problems drawn from them."""
