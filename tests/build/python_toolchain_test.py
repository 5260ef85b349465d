"""Proves that mf_py_test runs unittest cases and finds an extension module."""

import unittest

import numpy
import toolchain_extension


class PythonToolchainTest(unittest.TestCase):
    def test_calls_the_extension(self):
        self.assertEqual(toolchain_extension.double(21), 42)

    def test_has_numpy(self):
        self.assertEqual(numpy.arange(4).sum(), 6)


if __name__ == "__main__":
    unittest.main()
