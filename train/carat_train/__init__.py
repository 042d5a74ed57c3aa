"""Trains the Carat demo family: small models in exact Gemma 4 shape, and drafters for them."""
