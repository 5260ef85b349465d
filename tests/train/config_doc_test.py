"""docs/config.md is what `meshfold config --doc` prints."""

import subprocess
import unittest

from meshfold_command import MESHFOLD


class ConfigDocTest(unittest.TestCase):
    def test_the_page_is_current(self):
        printed = subprocess.run([MESHFOLD, "config", "--doc"], capture_output=True, text=True)
        with open("docs/config.md", encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(page, printed.stdout, "run: ./run meshfold config --doc > docs/config.md")


if __name__ == "__main__":
    unittest.main()
