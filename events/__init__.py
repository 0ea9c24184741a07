"""The words of runfold, their bytes and their meaning: pure functions over frozen values."""
