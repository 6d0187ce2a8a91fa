"""The chain of a run, one module a hop: data, padding, collate, batch, model, optimizer, precision, launch."""
