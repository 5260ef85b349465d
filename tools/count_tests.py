"""Counts test cases and prints 'N passed, N failed'; exits 1 if any failed or none passed.

Usage: count_tests.py FILE...
FILE.json: what `bazel test --build_event_json_file` wrote, which names the result file of each test
that this very call ran or took from its cache. FILE.xml: a JUnit result file from elsewhere.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def count_cases(xml_path):
    """Numbers of passed, skipped cases and the names of failed ones in a JUnit result file."""
    passed, skipped, failed = 0, 0, []
    try:
        cases = list(ElementTree.parse(xml_path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (
            case.find("skipped") is not None
            or case.get("status") == "notrun"
            or case.get("result") == "skipped"
        ):
            skipped += 1
        else:
            passed += 1
    return passed, skipped, failed


def last_attempts(events_path):
    """Yields (label, status, path of the result file) of each test, of the last attempt."""
    results = {}
    with open(events_path) as events:
        for line in events:
            event = json.loads(line)
            if "testResult" not in event["id"] or "testResult" not in event:
                continue
            key = event["id"]["testResult"]
            place = (key["label"], key.get("run", 1), key.get("shard", 1))
            attempt = key.get("attempt", 1)
            if attempt >= results.get(place, (0, None))[0]:
                results[place] = (attempt, event["testResult"])
    for (label, _, _), (_, result) in sorted(results.items()):
        uris = [
            output.get("uri", "")
            for output in result.get("testActionOutput", [])
            if output["name"] == "test.xml"
        ]
        path = urllib.parse.unquote(urllib.parse.urlparse(uris[0]).path) if uris else ""
        yield label, result.get("status", "NO_STATUS"), path


def count(paths):
    """Numbers of passed and skipped cases and the names of failed ones in all files."""
    passed, skipped, failed = 0, 0, []
    for path in paths:
        if path.endswith(".json"):
            results = last_attempts(path)
        else:
            results = [(path, "PASSED", path)]
        for label, status, xml_path in results:
            more_passed, more_skipped, names = count_cases(xml_path)
            if status != "PASSED" and not names:
                # Crashed, timed out, or failed in a way that its result file does not tell.
                names = [status]
            elif not (more_passed or more_skipped or names):
                more_passed = 1 if path.endswith(".json") else 0
                names = [] if more_passed else ["no result"]
            passed += more_passed
            skipped += more_skipped
            failed += ["%s: %s" % (label, name) for name in names]
    return passed, skipped, failed


def main():
    passed, skipped, failed = count(sys.argv[1:])
    for name in failed:
        print("FAILED " + name)
    if skipped:
        print("%d skipped" % skipped)
    print("%d passed, %d failed" % (passed, len(failed)))
    sys.exit(bool(failed) or passed == 0)


if __name__ == "__main__":
    main()
