"""nvcc_objects: compiles .cu files to objects that a cc_library takes as srcs.

    nvcc_objects(name = "kernels_cu", srcs = glob(["*.cu"]), deps = [":kernels_h"])

    mf_cc_library(
        name = "cuda",
        srcs = select({"//:with_cuda": [":kernels_cu"], "//conditions:default": ["no_cuda.cc"]}),
        deps = [":kernels_h", "//third_party:cuda"],
    )
"""

# Hopper, and through its PTX whatever comes after.
_DEFAULT_ARCHITECTURES = ["90"]

def _nvcc_objects_impl(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    flags = ["-c", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC,-Wall", "-I."]
    for architecture in ctx.attr.architectures:
        flags.append("-gencode=arch=compute_{a},code=[sm_{a},compute_{a}]".format(a = architecture))
    for context in contexts:
        flags += ["-I" + folder for folder in context.includes.to_list() + context.quote_includes.to_list()]
        flags += ["-isystem=" + folder for folder in context.system_includes.to_list()]
        flags += ["-D" + define for define in context.defines.to_list()]
    headers = depset(ctx.files.hdrs, transitive = [context.headers for context in contexts])

    objects = []
    for source in ctx.files.srcs:
        # The name tells cc_library that the object is position independent.
        object = ctx.actions.declare_file("%s/%s.pic.o" % (ctx.label.name, source.basename))
        ctx.actions.run(
            executable = ctx.attr.nvcc,
            arguments = flags + ctx.attr.copts + [source.path, "-o", object.path],
            inputs = depset([source], transitive = [headers]),
            outputs = [object],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"], doc = "Headers of the .cu files alone."),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "architectures": attr.string_list(default = _DEFAULT_ARCHITECTURES),
        "nvcc": attr.string(default = "/usr/local/cuda/bin/nvcc"),
    },
)

def nvcc_objects(name, deps = [], tags = [], **kwargs):
    """Objects of .cu files; `//...` leaves the target out, since nvcc is not everywhere."""
    _nvcc_objects(
        name = name,
        deps = deps + ["//third_party:cuda"],
        tags = tags + ["manual"],
        **kwargs
    )
