"""Checks over the whole build graph that every dependency points down (docs/architecture.md).

`./run test` runs it beside Bazel, with the graph (bazel query --output=xml) in the file that
BUILD_GRAPH names. It repeats the rules of the package groups in the root BUILD on purpose: a group
widened there by mistake fails here.
"""

import os
import unittest
import xml.etree.ElementTree as ElementTree

# What each folder may use directly. Use of what stands further down is stated too, since nothing
# here is implied but a folder's use of itself.
MAY_USE = {
    "core/base": [],
    "core/tensor": ["core/base"],
    "core/backend": ["core/base", "core/tensor"],
    "core/autograd": ["core/base", "core/tensor", "core/backend"],
    "core/nn": ["core/base", "core/tensor", "core/backend", "core/autograd"],
    "core/io": ["core/base", "core/tensor"],
    "core/data": ["core/base", "core/tensor", "core/io"],
    "comm": ["core/base", "core/tensor", "core/backend"],
    "memory": ["core/base", "core/tensor", "core/backend", "core/autograd", "core/nn", "core/io"],
    "optim": ["core/base", "core/tensor", "core/backend", "core/autograd", "core/nn"],
    "parallel": ["core", "comm", "memory", "optim"],
    "moe": ["core", "comm", "memory", "optim", "parallel"],
    "models": ["core", "comm", "memory", "optim", "parallel", "moe"],
    "train": ["core", "comm", "memory", "optim", "parallel", "moe", "models"],
}


def inside(package, folder):
    return package == folder or package.startswith(folder + "/")


def read_edges(path):
    """Pairs of (package of a rule, package of something that it uses), outside repositories out."""
    edges = set()
    for rule in ElementTree.parse(path).getroot().iter("rule"):
        user = rule.get("name").removeprefix("//").split(":")[0]
        for used in rule.iter("rule-input"):
            if used.get("name").startswith("//"):
                edges.add((user, used.get("name")[2:].split(":")[0]))
    return edges


def forbidden(edges, folder):
    allowed = MAY_USE[folder] + [folder, "third_party"]
    return sorted(
        (user, used)
        for user, used in edges
        if inside(user, folder) and used and not any(inside(used, place) for place in allowed)
    )


class LayeringTest(unittest.TestCase):
    def test_rules_themselves_have_no_cycle(self):
        done = []
        for folder, used in MAY_USE.items():  # each folder stands on folders above it in the table
            for place in used:
                self.assertTrue(any(inside(name, place) for name in done), (folder, place))
            done.append(folder)

    def test_every_folder_of_the_library_has_rules(self):
        users = {user for user, _ in read_edges(os.environ["BUILD_GRAPH"])}
        tops = ("core", "comm", "memory", "optim", "parallel", "moe", "models", "train")
        for user in users:
            if user.split("/")[0] in tops:
                self.assertTrue(any(inside(user, folder) for folder in MAY_USE), user)

    def test_finds_a_forbidden_edge(self):
        edges = {("core/nn", "moe"), ("comm", "optim"), ("moe/routers", "moe")}
        self.assertEqual(forbidden(edges, "core/nn"), [("core/nn", "moe")])
        self.assertEqual(forbidden(edges, "comm"), [("comm", "optim")])
        self.assertEqual(forbidden(edges, "moe"), [])


def _add_test(folder):
    def test(self):
        self.assertEqual(forbidden(read_edges(os.environ["BUILD_GRAPH"]), folder), [])

    setattr(LayeringTest, "test_%s_points_down" % folder.replace("/", "_"), test)


for _folder in MAY_USE:
    _add_test(_folder)


if __name__ == "__main__":
    unittest.main()
