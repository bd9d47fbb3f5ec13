"""SciMult: multi-task contrastive pre-training of scientific text encoders."""

__version__ = "0.1.0"
