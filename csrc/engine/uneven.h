// Operations of which a rank learns the sizes only when all ranks have come: allgather, gather, alltoall with
// splits, scatter. First a small exchange of the sizes, then the data, straight into memory of the right
// size.
//
//   allgather  everybody tells its rows; everybody gets everything
//   gather     everybody tells its rows; only the root receives: an alltoall in which all send to one
//   alltoall   everybody tells how many rows go to whom; without splits nothing has to be told
//   scatter    the root tells dtype, shape and whose rows are how many: an alltoall in which one sends
//
// What peers tell is checked before memory is made for it (see sizes.h).
#pragma once

#include "engine/fabric.h"
#include "engine/lookout.h"
#include "engine/operation.h"
#include "engine/sizes.h"

namespace ring {

class Uneven {
 public:
  Uneven(Fabric& fabric, Lookout& lookout) : fabric_(fabric), lookout_(lookout) {}

  Status run(Operation& operation);

 private:
  Status allgather(Operation& operation);
  Status gather(Operation& operation);
  Status alltoall(Operation& operation);
  Status scatter(Operation& operation);

  // Everybody's numbers to everybody; `count` of them from each, or any count if negative.
  Status share(const Operation& operation, const Numbers& mine, int64_t count, std::vector<Numbers>* all);
  // Bytes of `rows` rows for each rank.
  Status sizes_of(const Numbers& rows, size_t row_bytes, std::vector<size_t>* sizes) const;
  // Where rows of these sizes go: the caller's output if it is as large as their sum, else memory made for
  // it.
  Status find_room(const std::vector<size_t>& sizes, Operation& operation, std::byte** room) const;

  int rank() const { return fabric_.topology().rank; }
  int size() const { return fabric_.topology().size; }

  Fabric& fabric_;
  Lookout& lookout_;
};

}  // namespace ring
