"""The summary line of ./run test must not call a failure a success."""

import json
import os
import tempfile
import unittest

import count_tests


class CountTestsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def events(self, *tests):
        """A Bazel event file with (label, attempt, status, text of the result file or None)."""
        lines = []
        for i, (label, attempt, status, xml) in enumerate(tests):
            outputs = []
            if xml is not None:
                path = self.write("%d.xml" % i, xml)
                outputs = [{"name": "test.xml", "uri": "file://" + path}]
            lines.append(
                {
                    "id": {"testResult": {"label": label, "run": 1, "attempt": attempt}},
                    "testResult": {"status": status, "testActionOutput": outputs},
                }
            )
        return self.write("events.json", "\n".join(map(json.dumps, lines)))

    def test_counts_cases_of_a_gtest(self):
        xml = """<testsuites><testsuite>
          <testcase name="A" classname="T" status="run" result="completed"/>
          <testcase name="B" classname="T" status="run" result="completed"><failure/></testcase>
          <testcase name="C" classname="T" status="run" result="skipped"><skipped/></testcase>
          <testcase name="D" classname="T" status="notrun" result="suppressed"/>
        </testsuite></testsuites>"""
        passed, skipped, failed = count_tests.count([self.events(("//x:t", 1, "FAILED", xml))])
        self.assertEqual((passed, skipped, failed), (1, 2, ["//x:t: T.B"]))

    def test_a_test_that_dies_after_good_cases_fails(self):
        xml = '<testsuites><testsuite><testcase name="A"/></testsuite></testsuites>'
        passed, _, failed = count_tests.count([self.events(("//x:t", 1, "FAILED", xml))])
        self.assertEqual((passed, failed), (1, ["//x:t: FAILED"]))

    def test_a_test_without_a_result_file_counts_once(self):
        events = self.events(("//x:a", 1, "TIMEOUT", None), ("//x:b", 1, "PASSED", None))
        self.assertEqual(count_tests.count([events]), (1, 0, ["//x:a: TIMEOUT"]))

    def test_only_the_last_attempt_counts(self):
        events = self.events(("//x:t", 1, "FAILED", None), ("//x:t", 2, "PASSED", None))
        self.assertEqual(count_tests.count([events]), (1, 0, []))

    def test_a_missing_result_file_given_by_name_fails(self):
        _, _, failed = count_tests.count([os.path.join(self.folder.name, "none.xml")])
        self.assertEqual(len(failed), 1)


if __name__ == "__main__":
    unittest.main()
