"""What the user's program does, read from its syntax trees alone: modules, values, entry points, batches, padding."""
