"""Parts that model families share: base class, embeddings, positions, heads, initialization."""
