#include "parallel/gather_whole.h"

#include <memory>

#include "core/backend/backend.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "core/tensor/box.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

using StartedWork = absl::StatusOr<std::unique_ptr<comm::Work>>;

absl::Status WaitFor(StartedWork work, absl::Duration deadline) {
  MF_RETURN_IF_ERROR(work.status());
  return (*work)->HostWait(deadline);
}

Tensor HostTensor(const Shape& shape, DType dtype) {
  return Tensor::Contiguous(shape, dtype, SystemHostAllocator());
}

absl::Status SendPart(const LocalPart& part, comm::Communicator& world) {
  const Tensor copy = HostTensor(part.tensor.shape(), part.tensor.dtype());
  CopyFromWhole(part.tensor, Box::Whole(copy.shape()), copy);
  return WaitFor(world.Send(copy, 0), world.deadline());
}

absl::StatusOr<Tensor> PutTogether(const LocalPart& part, const Meshes& meshes) {
  const Parameter& parameter = *part.parameter;
  comm::Communicator& world = *meshes.dense.world();
  const Tensor whole = HostTensor(parameter.shape, part.tensor.dtype());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!IsFirstCopy(parameter.layout, meshes.ranks, rank)) continue;
    MF_ASSIGN_OR_RETURN(const Box box,
                        LocalBox(parameter.shape, parameter.layout, meshes.ranks, rank));
    if (rank == 0) {
      CopyIntoWhole(part.tensor, box, whole);
      continue;
    }
    const Tensor received = HostTensor(box.shape(), whole.dtype());
    MF_RETURN_IF_ERROR(WaitFor(world.Recv(received, rank), world.deadline()));
    CopyIntoWhole(received, box, whole);
  }
  return whole;
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> GatherWhole(absl::Span<const LocalPart> parts,
                                                const Meshes& meshes) {
  std::vector<Tensor> wholes;
  for (const LocalPart& part : parts) {
    if (meshes.rank() == 0) {
      MF_ASSIGN_OR_RETURN(Tensor whole, PutTogether(part, meshes));
      wholes.push_back(std::move(whole));
    } else if (IsFirstCopy(part.parameter->layout, meshes.ranks, meshes.rank())) {
      MF_RETURN_IF_ERROR(SendPart(part, *meshes.dense.world()));
    }
  }
  return wholes;
}

}  // namespace meshfold::parallel
