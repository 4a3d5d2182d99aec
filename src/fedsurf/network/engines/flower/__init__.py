"""Rounds between a server and agents that only answer: the engine for Flower.

Flower starts an agent's program anew for every message, so what is half done cannot wait in memory. The
server keeps what it has for an agent until the agent answers; an agent goes through its work again from the
last state on its disk, takes what it received from there, and stops where it must wait.
"""
