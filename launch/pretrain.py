"""Pre-train under a launcher: ``deepspeed``, ``torchrun``, or ``python`` for one process."""

from scimult.cli.main import launch

if __name__ == "__main__":
    launch("pretrain")
