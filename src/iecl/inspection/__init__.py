"""Where entropy is made and where it is lost: the input block, the layers of the encoder, the embeddings."""
