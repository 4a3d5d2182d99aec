"""Recipes of the pretrained optimizers: problems, meta-training, and training of confidence."""
