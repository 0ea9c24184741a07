"""The job as runfold's ranks run it, in a script that imports torch."""

import torch
from peer_runfold_job import train

__all__ = ["torch", "train"]
