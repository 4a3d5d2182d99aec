"""A Flower app in which agents train one classifier in ten rounds, each on its own rows."""
