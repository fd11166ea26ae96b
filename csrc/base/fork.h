// Noticing a fork: threads and locks do not survive one, so nothing made before it may be used after it.
#pragma once

namespace ring {

// How many forks lie between the first process that asked and this one. Costs one load.
int fork_generation();

}  // namespace ring
