// OpenCL by hand, on the device that the driver `opencl` takes too: shared virtual memory and an in-order queue, as the
// driver has them. It is the peer of each metric of `cargo xtask bench driver`, in the same process.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

// The one kernel of all that is about launches. Both sides load this text.
inline const char* const ADD_ONE = "kernel void add_one(global float* value) { value[0] += 1.0f; }";

class RawOpenCl {
 public:
  static void ok(cl_int code) {
    if (code != CL_SUCCESS) throw std::runtime_error("OpenCL error " + std::to_string(code));
  }

  RawOpenCl() {
    ok(clGetPlatformIDs(1, &platform_, nullptr));
    ok(clGetDeviceIDs(platform_, CL_DEVICE_TYPE_ALL, 1, &device_, nullptr));
    cl_int code = CL_SUCCESS;
    context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
    ok(code);
    queue_ = clCreateCommandQueueWithProperties(context_, device_, nullptr, &code);
    ok(code);
    cl_device_svm_capabilities can = 0;
    ok(clGetDeviceInfo(device_, CL_DEVICE_SVM_CAPABILITIES, sizeof can, &can, nullptr));
    // As the driver does where the host sees the memory.
    if (can & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) memory_flags_ |= CL_MEM_SVM_FINE_GRAIN_BUFFER;
  }

  std::string version() const {
    char platform[256] = "", device[256] = "", driver[256] = "";
    ok(clGetPlatformInfo(platform_, CL_PLATFORM_NAME, sizeof platform, platform, nullptr));
    ok(clGetDeviceInfo(device_, CL_DEVICE_NAME, sizeof device, device, nullptr));
    ok(clGetDeviceInfo(device_, CL_DRIVER_VERSION, sizeof driver, driver, nullptr));
    return std::string(platform) + " " + driver + " on " + device;
  }

  // Memory for as long as the program runs.
  void* alloc(size_t bytes) const {
    void* memory = clSVMAlloc(context_, memory_flags_, bytes, 0);
    if (memory == nullptr) throw std::runtime_error("clSVMAlloc has no memory");
    return memory;
  }

  cl_program compile(const std::string& source, const std::string& options) const {
    const char* text = source.c_str();
    cl_int code = CL_SUCCESS;
    const cl_program program = clCreateProgramWithSource(context_, 1, &text, nullptr, &code);
    ok(code);
    if (clBuildProgram(program, 1, &device_, options.c_str(), nullptr, nullptr) != CL_SUCCESS) {
      char log[4096] = "";
      clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, nullptr);
      throw std::runtime_error(std::string("it does not compile: ") + log);
    }
    return program;
  }

  static cl_kernel kernel(cl_program program, const char* name) {
    cl_int code = CL_SUCCESS;
    const cl_kernel kernel = clCreateKernel(program, name, &code);
    ok(code);
    return kernel;
  }

  // Launches with these addresses as arguments, which are given anew each time as a caller of otr_kernel_launch gives them.
  template <class Addresses>
  void launch(cl_kernel kernel, const Addresses& addresses, cl_uint rank, const size_t* items, const size_t* group) const {
    cl_uint index = 0;
    for (const void* address : addresses) ok(clSetKernelArgSVMPointer(kernel, index++, address));
    ok(clEnqueueNDRangeKernel(queue_, kernel, rank, nullptr, items, group, 0, nullptr, nullptr));
  }

  void copy(void* to, const void* from, size_t bytes) const {
    ok(clEnqueueSVMMemcpy(queue_, CL_FALSE, to, from, bytes, 0, nullptr, nullptr));
  }

  void finish() const { ok(clFinish(queue_)); }

 private:
  cl_platform_id platform_ = nullptr;
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  cl_svm_mem_flags memory_flags_ = CL_MEM_READ_WRITE;
};

}  // namespace bench
