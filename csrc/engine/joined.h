// What a rank that has joined contributes to an operation that it knows only by its descriptor.
#pragma once

#include "engine/operation.h"

namespace ring {

// An operation that fits `descriptor`, with memory of its own: zeros for sums and averages, the neutral
// element for minima, maxima and products, no rows where ranks may differ in them.
OperationPtr make_stand_in(const Descriptor& descriptor, int rank, int size, Deadline deadline);

}  // namespace ring
