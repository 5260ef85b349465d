"""Rules for Meshfold's own code: warnings are errors, one line a test.

mf_cc_library, mf_cc_binary, mf_cc_test: the native rules with the project's compile options.
mf_py_extension: a Python extension module. mf_py_test: a script of unittest cases.
mpi_cc_test: a gtest under mpirun with several numbers of ranks. mf_fuzz_test: a fuzz target.
"""

# Two warnings stay off, both wrong in GCC 12: designated initializers that rely on default member
# values are meant, and -Wrestrict misreads std::string's operator+ (GCC bug 105651).
_WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"] + select({
    "//:with_fuzz": [],
    "//conditions:default": ["-Wno-restrict"],
}) + select({
    "//:without_werror": [],
    "//conditions:default": ["-Werror"],
})

_OPENMP_COPTS = select({
    "//:without_openmp": ["-Wno-unknown-pragmas"],
    "//conditions:default": ["-fopenmp"],
})

_OPENMP_LINKOPTS = select({
    "//:without_openmp": [],
    "//conditions:default": ["-fopenmp"],
})

def mf_cc_library(name, copts = [], linkopts = [], openmp = False, **kwargs):
    """cc_library; `openmp = True` compiles `#pragma omp` and links the OpenMP run-time."""
    native.cc_library(
        name = name,
        copts = _WARNINGS + (_OPENMP_COPTS if openmp else []) + copts,
        linkopts = linkopts + (_OPENMP_LINKOPTS if openmp else []),
        **kwargs
    )

def mf_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = _WARNINGS + copts, **kwargs)

def mf_cc_test(name, srcs, deps = [], copts = [], size = "small", main = True, **kwargs):
    """A gtest; brings gtest, gmock and, unless `main = False`, a main function."""
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _WARNINGS + copts,
        size = size,
        deps = deps + (["//third_party:gtest_main"] if main else ["//third_party:gtest"]),
        **kwargs
    )

def mf_py_extension(name, srcs, copts = [], deps = [], **kwargs):
    """An extension module `name`.so; give `name` the module's name."""
    native.cc_binary(
        name = name + ".so",
        srcs = srcs,
        copts = _WARNINGS + ["-fvisibility=hidden"] + copts,
        linkshared = True,
        deps = deps + ["//third_party:pybind11"],
        **kwargs
    )

def _ranks_tags(ranks):
    """Tags of a test of several processes: it takes both cores, and --config=tsan skips it."""
    return ["mpi", "cpu:%d" % min(ranks, 2)]

def mf_py_test(
        name,
        script,
        data = [],
        python_path = ["python/site"],
        ranks = 0,
        size = "small",
        tags = [],
        **kwargs):
    """Runs the unittest cases of a script under /usr/bin/python3.

    --config=asan and --config=tsan skip it: their run-times must be loaded before the interpreter.

    Args:
      name: the test's name.
      script: the .py file.
      data: modules (.py and extension .so) and files that the script reads.
      python_path: folders from the root that join PYTHONPATH, after the root itself.
      ranks: if not 0, runs under mpirun with that many ranks.
      size: see sh_test.
      tags: see sh_test.
      **kwargs: passed to sh_test.
    """
    runner = "//third_party/bazel:run_py_test.sh"
    mpirun = "//third_party/bazel:run_mpi_test.sh"
    native.sh_test(
        name = name,
        srcs = [mpirun if ranks else runner],
        args = (["%d" % ranks, "$(rootpath %s)" % runner] if ranks else []) +
               ["$(rootpath %s)" % script] + python_path,
        data = data + [
            script,
            runner,
            "//third_party/bazel:py_test_main.py",
        ],
        size = size,
        tags = tags + ["python"] + (_ranks_tags(ranks) if ranks else []),
        **kwargs
    )

def mpi_cc_test(
        name,
        srcs,
        ranks,
        deps = [],
        args = [],
        copts = [],
        data = [],
        size = "small",
        tags = [],
        **kwargs):
    """One gtest `name`_`N`_ranks for each number N of ranks, and the suite `name` of them all.

    Every rank runs every case; a rank that fails fails the test. `main` initialises MPI with
    MPI_THREAD_MULTIPLE before the cases and finalises it after, so code under test must ask
    MPI_Initialized. Few tests belong here: ThreadWorld in an mf_cc_test is faster and runs under
    ThreadSanitizer.

    Args:
      name: the suite's name.
      srcs: sources, without a main.
      ranks: numbers of ranks, e.g. [1, 2, 4].
      deps: see cc_test.
      args: arguments of the program.
      copts: see cc_test.
      data: see cc_test.
      size: see cc_test.
      tags: see cc_test.
      **kwargs: passed to the test of each number of ranks.
    """
    program = name + "_program"
    native.cc_binary(
        name = program,
        testonly = True,
        srcs = srcs,
        copts = _WARNINGS + copts,
        deps = deps + ["//third_party/mpi:gtest_main"],
    )
    tests = ["%s_%d_ranks" % (name, n) for n in ranks]
    for test, n in zip(tests, ranks):
        native.sh_test(
            name = test,
            srcs = ["//third_party/bazel:run_mpi_test.sh"],
            args = ["%d" % n, "$(rootpath :%s)" % program] + args,
            data = data + [program],
            size = size,
            tags = tags + _ranks_tags(n),
            **kwargs
        )
    native.test_suite(name = name, tests = tests)

def mf_fuzz_test(name, srcs, deps = [], corpus = [], runs = 10000, copts = [], tags = []):
    """A fuzz target: sources with `extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t)`.

    `name` replays the corpus and then `runs` mutations of it by a fixed seed, in every build.
    `name`_libfuzzer is the same target under clang's libFuzzer with AddressSanitizer; it exists
    under --config=fuzz only, and `./run test` runs it there.

    Args:
      name: the test's name.
      srcs: the target's sources.
      deps: keep few: --config=fuzz compiles them once more.
      corpus: small inputs to start from, e.g. glob(["testdata/my_fuzz/*"]).
      runs: number of mutated inputs.
      copts: see cc_test.
      tags: see cc_test.
    """
    corpus_files = name + "_corpus"
    native.filegroup(name = corpus_files, srcs = corpus)
    native.cc_test(
        name = name,
        srcs = srcs,
        copts = _WARNINGS + copts,
        args = ["--runs=%d" % runs] + ["$(rootpaths :%s)" % corpus_files if corpus else ""],
        data = [corpus_files],
        size = "small",
        tags = tags,
        deps = deps + ["//third_party/fuzz:standalone_main"],
    )
    program = name + "_libfuzzer_program"
    native.cc_binary(
        name = program,
        testonly = True,
        srcs = srcs,
        copts = _WARNINGS + copts,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps,
    )
    native.sh_test(
        name = name + "_libfuzzer",
        srcs = ["//third_party/fuzz:run_libfuzzer.sh"],
        args = ["%d" % runs, "$(rootpath :%s)" % program] +
               ["$(rootpaths :%s)" % corpus_files if corpus else ""],
        data = [
            corpus_files,
            program,
        ],
        size = "small",
        tags = tags + ["manual", "libfuzzer"],
    )
