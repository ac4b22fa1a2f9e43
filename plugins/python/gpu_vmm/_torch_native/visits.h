// What visitors of the library collect. C calls them, so that no exception may leave them.
#pragma once

#include <exception>
#include <vector>

namespace gpu_vmm {

class Visits {
 public:
  // Adds an element. After an exception, which is kept, nothing is added any more.
  template <class Element>
  void add(std::vector<Element>& all, const Element& one) noexcept {
    if (failed_) {
      return;
    }
    try {
      all.push_back(one);
    } catch (...) {
      failed_ = std::current_exception();
    }
  }

  // Throws the exception that was kept. Call it when the function of the library has returned.
  void check() {
    if (failed_) {
      std::rethrow_exception(failed_);
    }
  }

 private:
  std::exception_ptr failed_;
};

} // namespace gpu_vmm
