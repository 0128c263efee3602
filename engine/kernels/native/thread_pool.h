// ThreadPool: the calling thread and N - 1 others share the items of one phase after the other.
//
// A phase ends when its items are done, not when all threads have come: a thread that lost its core
// to another program, or is still waking up, holds nobody up unless it is in the middle of an item.
// No OpenMP: torch brings a runtime of its own, and two of them would spin against each other.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "vector_math.h"

namespace stoker {

constexpr int kSpins = 2000;  // pauses before a waiting thread lets others have its core

template <class Condition>
void spin_until(const Condition& condition) {
  for (int spins = 0; !condition(); ++spins) {
    if (spins < kSpins) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
}

struct Phase {
  alignas(kCacheLine) std::atomic<std::int64_t> next{0};  // the first item that nobody has taken
  alignas(kCacheLine) std::atomic<std::int64_t> done{0};
};

// One thread's way through the phases of a job. All threads make the same calls in the same order.
class Team {
 public:
  Team(int thread, int size, Phase* phases, std::int64_t max_phases)
      : thread_(thread), size_(size), phases_(phases), last_(phases + max_phases) {}

  int thread() const { return thread_; }
  int size() const { return size_; }

  // Calls body(item, following) for items 0..count that no other thread takes, and returns when all
  // are done. `following` is the item that this thread does next, or -1.
  template <class Body>
  void share(std::int64_t count, const Body& body) {
    assert(phases_ < last_);
    Phase& phase = *phases_++;
    std::int64_t item = phase.next.fetch_add(1, std::memory_order_relaxed);
    while (item < count) {
      const std::int64_t following = phase.next.fetch_add(1, std::memory_order_relaxed);
      body(item, following < count ? following : -1);
      phase.done.fetch_add(1, std::memory_order_release);
      item = following;
    }
    spin_until([&] { return phase.done.load(std::memory_order_acquire) >= count; });
  }

 private:
  const int thread_, size_;
  Phase* phases_;
  const Phase* const last_;
};

class ThreadPool {
 public:
  ThreadPool(int num_threads, std::int64_t max_phases)
      : size_(num_threads), max_phases_(max_phases), phases_(new Phase[max_phases]) {
    // Signals are for the threads of the host program, which may wait for them in a system call.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (int thread = 1; thread < size_; ++thread) {
        threads_.emplace_back([this, thread] { serve(thread); });
      }
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      stop();
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~ThreadPool() { stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(team) on every thread that comes in time, the caller included; body must not throw.
  // On return all phases are done, but another thread may still be on its way out of `body`: what
  // it reads outside of items must stay unchanged until `settle`.
  void run(std::function<void(Team&)> body) {
    settle();
    for (std::int64_t index = 0; index < max_phases_; ++index) {
      phases_[index].next.store(0, std::memory_order_relaxed);
      phases_[index].done.store(0, std::memory_order_relaxed);
    }
    body_ = std::move(body);
    gate_.store(kOpen, std::memory_order_release);
    wake();
    work(0);
    gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  }

  // Returns when no thread is inside the body of the last run.
  void settle() {
    spin_until([&] { return gate_.load(std::memory_order_acquire) == 0; });
  }

 private:
  static constexpr std::uint32_t kOpen = 1u << 31;  // the bits below count the threads inside

  void work(int thread) {
    Team team(thread, size_, phases_.get(), max_phases_);
    body_(team);
  }

  bool enter() {
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0) {
      if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void wake() {
    if (size_ == 1) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_.fetch_add(1, std::memory_order_relaxed);
    }
    job_posted_.notify_all();
  }

  void serve(int thread) {
    std::uint32_t seen = 0;
    while (true) {
      seen = wait_for_job(seen);
      if (stopping_.load(std::memory_order_acquire)) return;
      if (!enter()) continue;
      work(thread);
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::uint32_t wait_for_job(std::uint32_t seen) {
    for (int spins = 0; spins < kSpins; ++spins) {
      const std::uint32_t job = job_.load(std::memory_order_acquire);
      if (job != seen) return job;
      _mm_pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    job_posted_.wait(lock, [&] { return job_.load(std::memory_order_relaxed) != seen; });
    return job_.load(std::memory_order_relaxed);
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    wake();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  const int size_;
  const std::int64_t max_phases_;
  const std::unique_ptr<Phase[]> phases_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable job_posted_;
  std::function<void(Team&)> body_;
  std::atomic<bool> stopping_{false};
  alignas(kCacheLine) std::atomic<std::uint32_t> job_{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> gate_{0};
};

// The part of 0..count that is number `index` of `pieces`: contiguous, sizes differ by at most one.
struct Span {
  std::int64_t begin, end;
};

inline Span span_of(std::int64_t count, std::int64_t index, std::int64_t pieces) {
  return {count * index / pieces, count * (index + 1) / pieces};
}

}  // namespace stoker
