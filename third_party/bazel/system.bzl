"""system_library: a target for a library that a Debian package installed."""

def system_library(name, libs, **kwargs):
    """Links system libraries whose headers stand on the compiler's default path.

    A library that nothing refers to is left out (--as-needed), so a target may list more than each
    user needs.

    Args:
      name: the label's name.
      libs: library names without `lib` and suffix, users before what they use.
      **kwargs: passed to cc_library.
    """
    native.cc_library(
        name = name,
        linkopts = ["-Wl,--push-state,--as-needed"] + ["-l" + lib for lib in libs] +
                   ["-Wl,--pop-state"],
        **kwargs
    )
