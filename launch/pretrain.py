"""Pre-train under a launcher: ``deepspeed``, ``torchrun``, or ``python`` for one process."""

import sys

from scimult.cli.main import app

if __name__ == "__main__":
    app(["pretrain", *sys.argv[1:]])
