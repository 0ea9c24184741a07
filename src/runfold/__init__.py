"""A training run is a fold: facts in, decisions logged, the log alone tells and rebuilds the run."""

__version__ = "0.1.0"

__all__ = ["__version__"]
