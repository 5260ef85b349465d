"""Runs the unittest cases of one script and writes Bazel's result file, one entry a case."""

import importlib.util
import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class Recorder(unittest.TextTestResult):
    """Keeps name, seconds and trouble of each case for the result file."""

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.started

    seconds = {}

    def write(self, path):
        suite = ElementTree.Element("testsuite", name=sys.argv[1])
        trouble = {test.id(): text for test, text in self.failures + self.errors}
        trouble.update({test.id(): "unexpected success" for test in self.unexpectedSuccesses})
        skipped = {test.id(): reason for test, reason in self.skipped}
        for name in sorted(set(self.seconds) | set(trouble)):
            case = ElementTree.SubElement(
                suite, "testcase", name=name, time="%.3f" % self.seconds.get(name, 0)
            )
            if name in trouble:
                ElementTree.SubElement(case, "failure").text = trouble[name]
            elif name in skipped:
                ElementTree.SubElement(case, "skipped", message=skipped[name])
        ElementTree.ElementTree(suite).write(path)


def main():
    script = sys.argv[1]
    sys.path.insert(0, os.path.dirname(script))
    spec = importlib.util.spec_from_file_location(os.path.basename(script)[:-3], script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(resultclass=Recorder, verbosity=2).run(suite)
    if "XML_OUTPUT_FILE" in os.environ:
        result.write(os.environ["XML_OUTPUT_FILE"])
    if result.testsRun == 0:
        sys.exit("%s has no unittest case" % script)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
