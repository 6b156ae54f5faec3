"""Images of any origin as batches of uint8 pixels."""
