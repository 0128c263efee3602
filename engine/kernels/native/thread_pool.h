// ThreadPool: the calling thread and N - 1 others share the items of one phase after the other.
//
// A phase ends when its items are done, not when all threads have come: a thread that lost its core
// to another program, or is still waking up, holds nobody up unless it is in the middle of an item.
// No OpenMP: torch brings a runtime of its own, and two of them would spin against each other.
// pthreads, since <thread>, <mutex> and <functional> take a tenth of the time of the whole build.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "vector_math.h"

namespace stoker {

constexpr int kSpins = 2000;  // pauses before a waiting thread lets others have its core

template <class Condition>
void spin_until(const Condition& condition) {
  for (int spins = 0; !condition(); ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      sched_yield();
    }
  }
}

// The part of 0..count that is number `index` of `pieces`: contiguous, sizes differ by at most one.
struct Span {
  std::int64_t begin, end;
};

inline Span span_of(std::int64_t count, std::int64_t index, std::int64_t pieces) {
  const auto border = [&](std::int64_t i) { return (count * i + pieces - 1) / pieces; };
  return {border(index), border(index + 1)};
}

struct alignas(kCacheLine) Counter {
  std::atomic<std::int64_t> value{0};
};

// One thread's way through the phases of a job. All threads make the same calls in the same order.
class Team {
 public:
  // `counters` has `size` + 1 per phase: how many items of each thread's part are taken, then how
  // many of all are done.
  Team(int thread, int size, Counter* counters) : thread_(thread), size_(size), phase_(counters) {}

  int thread() const { return thread_; }
  int size() const { return size_; }

  // Calls body(item, following) for each of 0..count on one thread or another, and returns when all
  // are done. Threads do contiguous parts and then help others with theirs. `following` is the item
  // that probably comes next here, or -1.
  template <class Body>
  void share(std::int64_t count, const Body& body) {
    Counter* taken = phase_;
    std::atomic<std::int64_t>& done = phase_[size_].value;
    phase_ += size_ + 1;
    for (int turn = 0; turn < size_; ++turn) {
      const int owner = (thread_ + turn) % size_;
      const std::int64_t finished = work_on(taken[owner], span_of(count, owner, size_), body);
      if (finished > 0) done.fetch_add(finished, std::memory_order_release);
    }
    spin_until([&] { return done.load(std::memory_order_acquire) >= count; });
  }

 private:
  template <class Body>
  static std::int64_t work_on(Counter& taken, Span part, const Body& body) {
    const std::int64_t size = part.end - part.begin;
    std::int64_t finished = 0;
    while (taken.value.load(std::memory_order_relaxed) < size) {
      const std::int64_t item =
          part.begin + taken.value.fetch_add(1, std::memory_order_relaxed);
      if (item >= part.end) break;
      body(item, item + 1 < part.end ? item + 1 : -1);
      ++finished;
    }
    return finished;
  }

  const int thread_, size_;
  Counter* phase_;
};

class ThreadPool {
 public:
  ThreadPool(int num_threads, std::int64_t max_phases)
      : size_(num_threads), num_counters_(max_phases * (num_threads + 1)),
        counters_(new Counter[num_counters_]) {
    // Signals are for the threads of the host program, which may wait for them in a system call.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool is_complete = start();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (is_complete) return;
    stop();
    throw std::bad_alloc();
  }

  ~ThreadPool() {
    stop();
    pthread_cond_destroy(&job_posted_);
    pthread_mutex_destroy(&mutex_);
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(team) on every thread that comes in time, the caller included; body must not throw.
  // On return all phases are done, but another thread may still be on its way out of `body`: what
  // it reads outside of items must stay unchanged until `settle`.
  template <class Body>
  void run(const Body& body) {
    settle();
    for (std::int64_t index = 0; index < num_counters_; ++index) {
      counters_[index].value.store(0, std::memory_order_relaxed);
    }
    job_body_ = std::make_unique<JobOf<Body>>(body);
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

  struct Job {
    virtual ~Job() = default;
    virtual void run(Team& team) const = 0;
  };

  template <class Body>
  struct JobOf final : Job {
    explicit JobOf(const Body& body) : body(body) {}
    void run(Team& team) const override { body(team); }
    const Body body;
  };

  struct Server {  // one of the other threads
    ThreadPool* pool;
    int thread;
    pthread_t handle;
  };

  // False when the system has no more threads.
  bool start() {
    servers_.reserve(size_);  // their addresses stay as they are
    for (int thread = 1; thread < size_; ++thread) {
      servers_.push_back({this, thread, {}});
      const auto main = [](void* memory) -> void* {
        const auto* server = static_cast<const Server*>(memory);
        server->pool->serve(server->thread);
        return nullptr;
      };
      if (pthread_create(&servers_.back().handle, nullptr, main, &servers_.back()) == 0) continue;
      servers_.pop_back();
      return false;
    }
    return true;
  }

  void work(int thread) {
    Team team(thread, size_, counters_.get());
    job_body_->run(team);
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
    pthread_mutex_lock(&mutex_);
    job_.fetch_add(1, std::memory_order_relaxed);
    pthread_mutex_unlock(&mutex_);
    pthread_cond_broadcast(&job_posted_);
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
      relax();
    }
    pthread_mutex_lock(&mutex_);
    while (job_.load(std::memory_order_relaxed) == seen) pthread_cond_wait(&job_posted_, &mutex_);
    const std::uint32_t job = job_.load(std::memory_order_relaxed);
    pthread_mutex_unlock(&mutex_);
    return job;
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    wake();
    for (Server& server : servers_) pthread_join(server.handle, nullptr);
    servers_.clear();
  }

  const int size_;
  const std::int64_t num_counters_;
  const std::unique_ptr<Counter[]> counters_;
  std::vector<Server> servers_;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t job_posted_ = PTHREAD_COND_INITIALIZER;
  std::unique_ptr<const Job> job_body_;
  std::atomic<bool> stopping_{false};
  alignas(kCacheLine) std::atomic<std::uint32_t> job_{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> gate_{0};
};

}  // namespace stoker
