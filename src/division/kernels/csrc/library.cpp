// What the library says of itself, and the threads it is given.
#include "parallel.h"

#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

using ParallelFor = int (*)(int64_t, int64_t, int64_t, division::Range, void*);
ParallelFor threads = nullptr;

}  // namespace

namespace division {

void parallel_for(int64_t begin, int64_t end, int64_t grain, Range range, void* context) {
  if (begin >= end) return;
  if (threads == nullptr || end - begin <= grain) {
    range(begin, end, context);
  } else {
    threads(begin, end, grain, range, context);
  }
}

}  // namespace division

// torch's `torch_parallel_for`; without it everything runs on the calling thread.
PUBLIC void division_use_threads(void* parallel_for) { threads = reinterpret_cast<ParallelFor>(parallel_for); }

// The bodies this build holds, and of those the ones this processor can run: bits 0 portable, 1 AVX2, 2 AVX-512,
// 3 AVX-512 with VBMI2.
PUBLIC int division_built() {
#if defined(DIVISION_X86)
  return 15;
#else
  return 1;
#endif
}

PUBLIC int division_runnable() {
  int found = 1;
#if defined(DIVISION_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");  // such a processor has F16C
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2) found |= 2;
  if (avx2 && avx512) found |= 4;
  if (avx2 && avx512 && __builtin_cpu_supports("avx512vbmi2")) found |= 8;
#endif
  return found;
}
