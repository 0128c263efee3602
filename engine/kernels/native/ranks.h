// Ranks: processes that share each layer of a model, and add up their parts through shared memory.
//
// Every rank meets the others at the same points of a step, in the same order. What it adds lies in
// one of two buffers, which take turns: it is written before a meeting and read by all behind it, and
// nobody writes it again before the next meeting, when all have read it. Who waits spins for a
// moment and then sleeps; a rank that is gone is EngineCore's business, which ends the others.
#pragma once

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thread_pool.h"
#include "vector_math.h"

namespace stoker {

// Where in this process the ranks' memory lies; `library.py` lays it out. It begins as zeros.
struct RankMemory {
  char* heads;               // one RankHead per rank
  float* parts;              // [2 turns, ranks, part_floats]
  char* outputs;             // [ranks, output_bytes]
  std::int64_t part_floats;  // of the most tokens that a step may have
  std::int64_t output_bytes;
  std::int64_t max_tokens;
};

struct alignas(2 * kCacheLine) RankHead {
  std::atomic<std::uint32_t> arrived;   // at so many meetings
  std::atomic<std::uint32_t> sleepers;  // who wait for that
  std::atomic<std::int64_t> sizes[2];   // of what it brings to a meeting; odd ones, even ones
  std::atomic<std::int64_t> waited_ns;  // for the others, in all
};
static_assert(offsetof(RankHead, waited_ns) == 24, "library.py reads it there");

class Ranks {
 public:
  void join(const RankMemory& memory, std::int64_t rank, std::int64_t count) {
    memory_ = memory;
    heads_ = reinterpret_cast<RankHead*>(memory.heads);
    rank_ = rank;
    count_ = count;
  }

  bool are_several() const { return count_ > 1; }
  bool is_first() const { return rank_ == 0; }
  std::int64_t count() const { return count_; }
  std::int64_t max_tokens() const { return memory_.max_tokens; }

  float* part(std::int64_t meeting, std::int64_t rank) const {
    return memory_.parts + ((meeting & 1) * count_ + rank) * memory_.part_floats;
  }
  float* own_part(std::int64_t meeting) const { return part(meeting, rank_); }

  char* output(std::int64_t rank) const { return memory_.outputs + rank * memory_.output_bytes; }
  char* own_output() const { return output(rank_); }

  // Returns when all ranks have come. Each says the size of what it brings; false when they differ.
  bool meet(std::int64_t size) {
    RankHead& own = heads_[rank_];
    const std::uint32_t target = own.arrived.load(std::memory_order_relaxed) + 1;
    own.sizes[target & 1].store(size, std::memory_order_relaxed);
    own.arrived.store(target, std::memory_order_seq_cst);
    if (own.sleepers.load(std::memory_order_seq_cst) != 0) wake(own.arrived);
    bool agree = true;
    std::int64_t waiting_since = 0;  // the last one to come looks at no clock
    for (std::int64_t rank = 0; rank < count_; ++rank) {
      if (!has_come(heads_[rank].arrived, target)) {
        if (waiting_since == 0) waiting_since = now_ns();
        wait_for(heads_[rank], target);
      }
      agree &= heads_[rank].sizes[target & 1].load(std::memory_order_relaxed) == size;
    }
    if (waiting_since != 0) {
      const std::int64_t waited = now_ns() - waiting_since;
      own.waited_ns.store(own.waited_ns.load(std::memory_order_relaxed) + waited,
                          std::memory_order_relaxed);
    }
    return agree;
  }

  // The sum of all ranks' rows, in the same order everywhere, so that all have the same bits.
  // Calls use(i, lanes, values) for each vector of the row.
  template <class Use>
  void sum_row(std::int64_t meeting, std::int64_t row, std::int64_t size, const Use& use) const {
    const float* first = part(meeting, 0) + row * size;
    for (std::int64_t i = 0; i < size; i += kLanes) {
      const Lanes lanes = first_lanes(size - i);
      Floats total = load(first + i, lanes);
      for (std::int64_t rank = 1; rank < count_; ++rank) {
        total = total + load(part(meeting, rank) + row * size + i, lanes);
      }
      use(i, lanes, total);
    }
  }

  // Gives the memory of large outputs back to the system; all ranks have left them.
  void release_outputs(std::int64_t bytes_each) const {
#ifdef MADV_REMOVE
    constexpr std::int64_t kLarge = 16 << 20, kPage = 4096;
    if (bytes_each < kLarge) return;
    for (std::int64_t rank = 0; rank < count_; ++rank) {
      madvise(output(rank), round_up(bytes_each, kPage), MADV_REMOVE);
    }
#endif
  }

 private:
  static constexpr long kNapNs = 50'000'000;  // a wake-up is never relied on alone

  static std::int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  }

  static bool has_come(const std::atomic<std::uint32_t>& arrived, std::uint32_t target) {
    return static_cast<std::int32_t>(arrived.load(std::memory_order_acquire) - target) >= 0;
  }

  static void wait_for(RankHead& other, std::uint32_t target) {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (has_come(other.arrived, target)) return;
      relax();
    }
    other.sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (true) {
      const std::uint32_t seen = other.arrived.load(std::memory_order_seq_cst);
      if (static_cast<std::int32_t>(seen - target) >= 0) break;
      sleep_while(other.arrived, seen);
    }
    other.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }

#ifdef __linux__
  static void sleep_while(std::atomic<std::uint32_t>& arrived, std::uint32_t seen) {
    const timespec nap{0, kNapNs};
    syscall(SYS_futex, &arrived, FUTEX_WAIT, seen, &nap, nullptr, 0);
  }

  static void wake(std::atomic<std::uint32_t>& arrived) {
    syscall(SYS_futex, &arrived, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
  }
#else  // several ranks run on Linux only
  static void sleep_while(std::atomic<std::uint32_t>&, std::uint32_t) { sched_yield(); }
  static void wake(std::atomic<std::uint32_t>&) {}
#endif

  RankMemory memory_{};
  RankHead* heads_ = nullptr;
  std::int64_t rank_ = 0, count_ = 1;
};

}  // namespace stoker
