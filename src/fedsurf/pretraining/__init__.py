"""Meta-training of the optimizer that is shipped: its problems, its recipe."""
