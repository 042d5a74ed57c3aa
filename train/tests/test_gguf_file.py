"""Blocks of .gguf weight types, read as docs/formats.md has them."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

try:
    import numpy as np
except ImportError:
    np = None


@unittest.skipIf(np is None, "numpy is not installed")
class Blocks(unittest.TestCase):
    def test_q5_0(self):
        """Column i's four bits lie low in byte i, column i + 16's high in it; their fifth bits are the bits i of one word."""
        from carat_train import gguf_file
        values = np.arange(32)[::-1].copy()                 # 31 .. 0: each of the 32 levels once
        low, fifth = values & 15, sum(int(v >> 4) << i for i, v in enumerate(values))
        block = np.float16(0.25).tobytes() + int(fifth).to_bytes(4, "little") + (low[:16] | low[16:] << 4).astype(np.uint8).tobytes()
        got = gguf_file.read_q5_0(np.frombuffer(block * 2, np.uint8))
        np.testing.assert_array_equal(got, np.tile((values - 16) * 0.25, (2, 1)))


if __name__ == "__main__":
    unittest.main()
