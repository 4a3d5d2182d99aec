"""Evaluation: experiments, studies, tuning and comparisons of optimizers."""
