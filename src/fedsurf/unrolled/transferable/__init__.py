"""The transferable optimizer: learned control of Newton-like steps and mixing for softmax heads."""
