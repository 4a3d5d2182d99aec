"""The transferable optimizer: learned control of Newton-like steps and mixing for softmax heads.

Read `optimizer` first: it explains the layer and its symbols. `graph` and `server` are one round over a graph
and through a server. `local` keeps the agents' examples, and `newton` fits heads to them; they are two files
because either is a sitting to read. `summaries` are what agents tell each other of their data; `controller`
and `confidence` are the learned perceptrons.
"""
