// The CPU backend: Highway for own vector kernels, oneDNN for matrix products, OpenMP threads.
//
// One class, one .cc a kernel family; contracts stand in core/backend/backend.h.
#pragma once

#include <memory>
#include <string>

#include "core/backend/backend.h"

namespace meshfold {

class CpuBackend : public Backend {
 public:
  CpuBackend();
  ~CpuBackend() override;

  std::string name() const override;
  Stream& default_stream() override;
  void Fill(double value, const Tensor& out) override;
  void Copy(const Tensor& x, const Tensor& out) override;
  std::unique_ptr<Completion> CopyToHost(const Tensor& x, void* host) override;
  std::unique_ptr<Completion> CopyFromHost(const void* host, const Tensor& out) override;
  void RandomNormal(RngKey key, uint64_t first_index, double mean, double stddev,
                    const Tensor& out) override;
  void Add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void Multiply(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void Axpy(double alpha, const Tensor& x, const Tensor& y) override;
  void Scale(double alpha, const Tensor& x, const Tensor& out) override;
  void ScaleByScalar(const Tensor& x, const Tensor& scalar, const Tensor& out) override;
  void Sigmoid(const Tensor& x, const Tensor& out) override;
  void SigmoidBackward(const Tensor& y, const Tensor& dy, const Tensor& dx) override;
  void Clamp(const Tensor& x, double low, double high, const Tensor& out) override;
  void ClampBackward(const Tensor& x, double low, double high, const Tensor& dy,
                     const Tensor& dx) override;
  void AddRowVector(const Tensor& x, const Tensor& bias, const Tensor& out) override;
  void ColumnSum(const Tensor& x, bool accumulate, const Tensor& out) override;
  void SwiGlu(const Tensor& gate_up, const Tensor& out) override;
  void SwiGluBackward(const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up) override;
  void Gemm(const GemmArgs& args) override;
  void ExpertsForward(const ExpertsArgs& args, const Tensor& hidden, const Tensor& y) override;
  void ExpertsBackward(const ExpertsArgs& args, const ExpertsBackwardArgs& backward) override;
  void RmsNorm(const RmsNormArgs& args, const Tensor& y, const Tensor& rstd,
               const Tensor& sum) override;
  void RmsNormBackward(const RmsNormArgs& args, const Tensor& rstd, const Tensor& dy,
                       const Tensor& dsum, const Tensor& dx, const Tensor& dweight,
                       bool accumulate_dweight) override;
  void Softmax(const Tensor& x, const Tensor& out) override;
  void SoftmaxBackward(const Tensor& y, const Tensor& dy, const Tensor& dx) override;
  void LogSumExp(const Tensor& x, const Tensor& out) override;
  void LinearCrossEntropy(const LinearCrossEntropyArgs& args) override;
  void Rope(const Tensor& x, int64_t num_heads, const Tensor& positions, const Tensor& cos,
            const Tensor& sin, bool inverse, const Tensor& out) override;
  void Attention(const AttentionArgs& args, const Tensor& out, const Tensor& lse) override;
  void AttentionBackward(const AttentionArgs& args, const Tensor& out, const Tensor& lse,
                         const Tensor& dout, const Tensor& dq, const Tensor& dk,
                         const Tensor& dv) override;
  void GatherRows(const Tensor& x, const Tensor& index, int64_t divisor,
                  const Tensor& out) override;
  void CombineRows(const Tensor& y, const Tensor& token_rows, const Tensor& out) override;
  void Embedding(const Tensor& table, const Tensor& ids, const Tensor& out) override;
  void EmbeddingBackward(const Tensor& ids, const Tensor& dy, bool accumulate,
                         const Tensor& dtable) override;
  void GatherElements(const Tensor& x, const Tensor& index, const Tensor& out) override;
  void ScatterElements(const Tensor& x, const Tensor& index, const Tensor& out) override;
  void GatherCols(const Tensor& scores, const Tensor& ids, const Tensor& out) override;
  void GatherColsBackward(const Tensor& ids, const Tensor& dout, const Tensor& dscores) override;
  void NormalizeRows(const Tensor& w, double eps, double scale, const Tensor& out) override;
  void NormalizeRowsBackward(const Tensor& w, double eps, double scale, const Tensor& dout,
                             const Tensor& dw) override;
  void WeightedSum(const Tensor& x, const Tensor& coefficients, const Tensor& valid,
                   const Tensor& out) override;
  void WeightedSumBackward(const Tensor& coefficients, const Tensor& valid, const Tensor& dout,
                           const Tensor& dx) override;
  void SquaredLogSumExp(const Tensor& z, double scale, const Tensor& valid,
                        const Tensor& out) override;
  void SquaredLogSumExpBackward(const Tensor& z, double scale, const Tensor& valid,
                                const Tensor& dout, const Tensor& dz) override;
  void SelectExperts(const SelectExpertsArgs& args) override;
  void SortByExpert(const SortByExpertArgs& args) override;
  void BlockSquareSums(const Tensor& x, const Tensor& out) override;
  void AdamW(const AdamWArgs& args) override;
  void Sgd(const SgdArgs& args) override;

 private:
  std::unique_ptr<Stream> stream_;
};

}  // namespace meshfold
