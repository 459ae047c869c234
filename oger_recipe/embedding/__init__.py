"""The trajectory encoder and the cache of teachers' embeddings."""
