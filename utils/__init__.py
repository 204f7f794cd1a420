"""What every lesson imports: data, model, distributed helpers, checkpoints, metrics, plots."""
