"""Experiment trackers: TensorBoard, MLflow and Weights & Biases, all used through `tracker.Tracker`.

Off by default. Nothing here decides anything of a result, and nothing that fails here ends a run.
"""
