"""The training functions of restarts, in a script that imports torch."""

import torch
from functions import Notes, fail_later

__all__ = ["Notes", "fail_later", "torch"]
