// error: what the lab's user did wrong (an unknown name, an absurd number, a broken file), in one line that says so.
#pragma once

#include <stdexcept>

namespace weir::lab {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace weir::lab
