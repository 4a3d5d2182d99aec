"""How the pretrained optimizers were made."""
