// Proves that mpi_cc_test starts the ranks it says and that Open MPI is linked.
#include <gtest/gtest.h>
#include <mpi.h>

namespace {

TEST(MpiToolchainTest, SumsRanks) {
  int rank = -1;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  EXPECT_EQ(sum, size * (size - 1) / 2);
}

}  // namespace
