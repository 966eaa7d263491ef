// CUDA on CPU: stands in for CUDA's header of this name and runs kernels on the host, to test them
// where there is no device.
//
// A .cu file is compiled as C++, with this folder first on the include path, and runs unchanged.
// Every CUDA thread is a fiber; the blocks of a grid run one after another, in random order.  At
// barriers, warp collectives and atomics another thread may go on; which one, a random number
// decides.
//
// Thrown as cuda_on_cpu::Error, with kernel, block, thread and line
//   * a barrier that some threads of the block do not reach, or reach at another line
//   * a warp collective whose mask names a lane that does not come, or leaves out the caller
//   * a shuffle that reads a lane outside its mask
//   * a kernel argument that points to host memory
// Reported by the sanitizer that the program is built with
//   * address, undefined: accesses outside global and shared memory, misaligned vectors, the host
//     touching device memory
//   * thread: two CUDA threads touching the same memory without a barrier in between
// Provoked, so that a test sees a wrong result
//   * device memory and dynamic shared memory begin with random bytes
//   * queued work runs when the host synchronises and not before
//
// Kernels that can be run this way
//   * are launched by cudaLaunchKernelEx(&config, kernel, arguments...), a plain function in CUDA
//     too, and reach dynamic shared memory through kernels/cuda/dynamic_shared.cuh
//   * use full masks under uniform control flow: loops are rounded up and predicated, not left
//   * bound every loop by sizes, never by "the bit must be there"
//   * use no inline PTX and no library of CUDA; an intrinsic is one line in intrinsics.hpp
//
// What it cannot see: one host thread runs everything, in sequence, so fences are taken as full
// order, races between blocks are not reported, and lanes never run in lockstep.  Nothing here
// says anything about speed.
//
// Threads: the runtime API takes one lock; kernels run under it.
// Replay: CUDA_ON_CPU_SEED or reseed() fixes every random choice; an Error names its seed.
#pragma once

#define CUDA_ON_CPU 1

#include "fiber.hpp"
#include "scheduler.hpp"
// After the scheduler, which they call.
#include "intrinsics.hpp"
#include "runtime.hpp"
