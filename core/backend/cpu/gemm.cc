// Dense matrix products.
#include "core/backend/cpu/convert.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/matrix_kernel.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"

namespace meshfold {

void CpuBackend::Gemm(const GemmArgs& args) {
  const Tensor a = args.a.dtype() == DType::kF32 ? args.a : cpu::AsContiguousF32(args.a);
  cpu::MatrixProduct product;
  product.a = {a.raw(), a.pitch(), args.transpose_a};
  product.b = {args.b.raw(), args.b.pitch(), args.transpose_b, args.b.dtype()};
  product.out = args.out.data<float>();
  product.out_pitch = args.out.pitch();
  product.m = args.transpose_a ? a.cols() : a.rows();
  product.k = args.transpose_a ? a.rows() : a.cols();
  product.n = args.transpose_b ? args.b.rows() : args.b.cols();
  product.accumulate = args.accumulate;
  MF_CHECK_EQ(args.transpose_b ? args.b.cols() : args.b.rows(), product.k);
  MF_CHECK(args.out.rows() == product.m && args.out.cols() == product.n)
      << " " << args.out.ToString() << " for a product of " << product.m << " by " << product.n;
  const ExecContext& context = CurrentContext();
  cpu::MultiplyParallel(product, context.num_threads, *context.allocator);
}

}  // namespace meshfold
