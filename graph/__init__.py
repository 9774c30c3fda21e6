"""What the model is: records, readers, gradients, rewriting, execution. Imports no other room."""
