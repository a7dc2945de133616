// Threads: those of the process's torch, through a function that the library is handed when it is loaded.
#pragma once

#include <cstdint>

namespace division {

using Range = void (*)(int64_t begin, int64_t end, void* context);

// Calls `range` on parts of begin to end, each of `grain` indices or more, on several threads.
void parallel_for(int64_t begin, int64_t end, int64_t grain, Range range, void* context);

// The same with a function object: `parallel(count, grain, [&](int64_t begin, int64_t end) { ... })`.
template <class Body>
void parallel(int64_t count, int64_t grain, const Body& body) {
  parallel_for(
      0, count, grain < 1 ? 1 : grain,
      [](int64_t begin, int64_t end, void* context) { (*static_cast<const Body*>(context))(begin, end); },
      const_cast<Body*>(&body));
}

}  // namespace division
