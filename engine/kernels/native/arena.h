// Arena: memory in one piece, handed out in pieces of whole cache lines.
#pragma once

#include <sys/mman.h>

#include <cstdint>

#include "vector_math.h"

namespace stoker {

// Memory for all weights in one piece: on huge pages where the system gives them.
class Arena {
 public:
  // Called twice for the same sequence of requests: first to measure, then to hand out.
  template <class T>
  T* take(std::int64_t count) {
    char* base = base_.data();
    T* memory = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used_);
    used_ += round_up<std::int64_t>(count * sizeof(T), kCacheLine);
    return memory;
  }

  void allocate() {
    base_.reserve(used_);
    madvise_huge();
    used_ = 0;
  }

  std::int64_t bytes() const { return used_; }
  char* data() { return base_.data(); }

 private:
  void madvise_huge() {
#ifdef MADV_HUGEPAGE
    constexpr std::uintptr_t kPage = 4096;
    const auto start = reinterpret_cast<std::uintptr_t>(base_.data());
    const std::uintptr_t first = round_up(start, kPage), last = (start + used_) / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  }

  Buffer<char> base_;
  std::int64_t used_ = 0;
};

}  // namespace stoker
