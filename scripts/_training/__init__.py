"""The training of the demo models, by scripts/train_demo.py. Its modules need `.venv-models`."""
