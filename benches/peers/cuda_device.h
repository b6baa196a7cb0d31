/* The face that the stand-in for the CUDA runtime (cuda_device.cpp) shows to the program that drives it:
 * the trace's time, the device's size, and a count of what it was asked to do. */
#pragma once

#include <cstdint>

/* Calls by kind, in the order in which outrigger-bench-alloc reads them. */
struct DeviceCalls {
  uint64_t mallocs, frees;          /* cudaMalloc, cudaFree */
  uint64_t reserves, releases;      /* cuMemAddressReserve, cuMemAddressFree */
  uint64_t creates, destroys;       /* cuMemCreate, cuMemRelease */
  uint64_t maps, accesses, unmaps;  /* cuMemMap, cuMemSetAccess, cuMemUnmap */
  uint64_t records;                 /* cudaEventRecord */
  uint64_t host_waits;              /* waits of the host for work that had not finished */
  uint64_t stream_waits;            /* cudaStreamWaitEvent */
};

extern "C" {
/* The device has so many bytes; an event has passed `lag` operations after it was recorded. */
void device_configure(uint64_t capacity, uint64_t lag);
/* The trace is at this operation. */
void device_tick(uint64_t operation);
/* All work submitted so far has finished. */
void device_idle();
/* Most bytes in use at a time. */
uint64_t device_peak();
/* All calls so far. */
DeviceCalls device_calls();
}
