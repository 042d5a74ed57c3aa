"""A small model of Gemma 4 E4B's shape that sees and hears: networks, pictures and speech made by a seed, training."""
