"""Callbacks for checkpointing, monitoring and the runtime that Lightning does not have."""
