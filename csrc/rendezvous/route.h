// The addresses of one rank, tried in turn. An address gets little time at first and twice as much each time
// all have been tried: one of many may be out of reach, and all may be slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ring {

class Route {
 public:
  explicit Route(std::vector<std::string> addresses);

  const std::string& address() const { return addresses_[at_]; }
  // Seconds for the current address to answer, at most `longest`.
  double patience(double longest) const;
  // Goes on to the next address; true if all have been tried once more.
  bool next();
  int rounds() const { return rounds_; }  // how often all have been tried
  bool several() const { return addresses_.size() > 1; }

  // What came of the current address: an errno, or 0. A rank listens before it announces itself and until it
  // is connected to all, so a rank of which every address refuses is not there any more.
  void note(int error);
  // True if every address has refused for so long.
  bool refused_for(int64_t us) const;

 private:
  std::vector<std::string> addresses_;
  std::vector<bool> refused_;  // what each did last
  size_t at_ = 0;
  int rounds_ = 0;
  int64_t refused_since_ = 0;
};

}  // namespace ring
