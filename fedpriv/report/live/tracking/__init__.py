"""A run as other tools show it: TensorBoard, MLflow, Weights & Biases, all behind `tracker.Tracker`.

Off by default. Nothing here decides anything of a result, and nothing that fails here ends a run.
"""
