// OpenCL on the CPU, on the first device of the first platform that the loader finds: the harness chooses the
// implementation through the environment. Nodes run on in-order queues. Graphs are command buffers where the
// implementation has them, else the kernels are enqueued anew for each replay; the version says which.

#define CL_TARGET_OPENCL_VERSION 300
#define CL_ENABLE_BETA_EXTENSIONS
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <algorithm>

#include "../native/wire.h"
#include "../native/work.h"

namespace {

// As for Outrigger: launches or hops before the queues are waited for.
constexpr int64_t BATCH = 64;
constexpr int64_t DEEP = 1000;
constexpr size_t ONE = 1;

const char* SOURCE = "kernel void add_one(global float* value) { value[0] += 1.0f; }";

void ok(cl_int code) {
  if (code != CL_SUCCESS) throw std::runtime_error("OpenCL error " + std::to_string(code));
}

// The functions of cl_khr_command_buffer.
struct CommandBuffers {
  clCreateCommandBufferKHR_fn create = nullptr;
  clFinalizeCommandBufferKHR_fn finalize = nullptr;
  clReleaseCommandBufferKHR_fn release = nullptr;
  clEnqueueCommandBufferKHR_fn enqueue = nullptr;
  clCommandNDRangeKernelKHR_fn launch = nullptr;

  explicit CommandBuffers(cl_platform_id platform) {
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(
          clGetExtensionFunctionAddressForPlatform(platform, name));
    };
    find(create, "clCreateCommandBufferKHR");
    find(finalize, "clFinalizeCommandBufferKHR");
    find(release, "clReleaseCommandBufferKHR");
    find(enqueue, "clEnqueueCommandBufferKHR");
    find(launch, "clCommandNDRangeKernelKHR");
  }

  explicit operator bool() const { return create && finalize && release && enqueue && launch; }
};

class Subject {
 public:
  Subject() : platform_(first_platform()), buffers_(platform_) {
    ok(clGetDeviceIDs(platform_, CL_DEVICE_TYPE_ALL, 1, &device_, nullptr));
    cl_int code = CL_SUCCESS;
    context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
    ok(code);
    for (cl_command_queue& queue : queues_) {
      queue = clCreateCommandQueueWithProperties(context_, device_, nullptr, &code);
      ok(code);
    }
    memory_ = clCreateBuffer(context_, CL_MEM_READ_WRITE, sizeof(float), nullptr, &code);
    ok(code);
    const cl_program program = clCreateProgramWithSource(context_, 1, &SOURCE, nullptr, &code);
    ok(code);
    ok(clBuildProgram(program, 1, &device_, "", nullptr, nullptr));
    kernel_ = clCreateKernel(program, "add_one", &code);
    ok(code);
    ok(clSetKernelArg(kernel_, 0, sizeof memory_, &memory_));
    ok(clFinish(queues_[0]));
  }

  std::string version() const {
    const char* how = buffers_ ? ", command buffers" : ", no command buffers: kernels enqueued anew";
    char platform[256] = "", device[256] = "", driver[256] = "";
    ok(clGetPlatformInfo(platform_, CL_PLATFORM_NAME, sizeof platform, platform, nullptr));
    ok(clGetDeviceInfo(device_, CL_DEVICE_NAME, sizeof device, device, nullptr));
    ok(clGetDeviceInfo(device_, CL_DRIVER_VERSION, sizeof driver, driver, nullptr));
    return std::string(platform) + " " + driver + " on " + device + how;
  }

  std::vector<bench::Measure> measures() {
    return {
        counted("launch_wait", 1, bench::timed([this](int64_t n) { launch_wait(n); })),
        counted("launch", 1, [this](int64_t n) { return launch(BATCH, n); }),
        counted("launch_deep", 1, [this](int64_t n) { return launch(DEEP, n); }),
        counted("stream_hop", 1, bench::timed([this](int64_t n) { hops(n); })),
        {"event_query", [this](int64_t n) { return event_query(n); }},
        {"event_wait_done", [this](int64_t n) { return event_wait_done(n); }},
        counted("chain_1", 1, [this](int64_t n) { return chain(1, n); }),
        counted("chain_1000", bench::CHAIN, [this](int64_t n) { return chain(bench::CHAIN, n); }),
        {"capture", [this](int64_t n) { return record(n); }},
    };
  }

 private:
  cl_platform_id platform_;
  CommandBuffers buffers_;
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
  cl_command_queue queues_[2] = {};
  cl_mem memory_ = nullptr;
  cl_kernel kernel_ = nullptr;

  static cl_platform_id first_platform() {
    cl_platform_id platform = nullptr;
    ok(clGetPlatformIDs(1, &platform, nullptr));
    return platform;
  }

  void launch_on(int queue, cl_uint wait_count = 0, const cl_event* waits = nullptr, cl_event* event = nullptr) {
    ok(clEnqueueNDRangeKernel(queues_[queue], kernel_, 1, nullptr, &ONE, &ONE, wait_count, waits, event));
  }

  void wait() {
    for (const cl_command_queue queue : queues_) ok(clFlush(queue));
    for (const cl_command_queue queue : queues_) ok(clFinish(queue));
  }

  bench::Measure counted(const char* name, int nodes, std::function<double(int64_t)> run) {
    return {name, [this, nodes, run = std::move(run)](int64_t repetitions) {
              float value = 0;
              ok(clEnqueueWriteBuffer(queues_[0], memory_, CL_TRUE, 0, sizeof value, &value, 0, nullptr, nullptr));
              const double nanoseconds = run(repetitions);
              ok(clEnqueueReadBuffer(queues_[0], memory_, CL_TRUE, 0, sizeof value, &value, 0, nullptr, nullptr));
              bench::expect_additions(value, repetitions * nodes);
              return nanoseconds;
            }};
  }

  void launch_wait(int64_t repetitions) {
    for (int64_t i = 0; i < repetitions; ++i) {
      launch_on(0);
      ok(clFinish(queues_[0]));
    }
  }

  double launch(int64_t depth, int64_t repetitions) {
    double nanoseconds = 0;
    for (int64_t left = repetitions; left > 0; left -= depth) {
      const double start = bench::now_ns();
      for (int64_t i = std::min(left, depth); i > 0; --i) launch_on(0);
      nanoseconds += bench::now_ns() - start;
      ok(clFinish(queues_[0]));
    }
    return nanoseconds;
  }

  // Each launch waits for the one before, on the other queue.
  void hops(int64_t repetitions) {
    for (int64_t left = repetitions; left > 0; left -= BATCH) {
      cl_event before = nullptr;
      for (int64_t i = 0; i < std::min(left, BATCH); ++i) {
        cl_event event = nullptr;
        launch_on(i & 1, before != nullptr, before != nullptr ? &before : nullptr, &event);
        if (before != nullptr) ok(clReleaseEvent(before));
        before = event;
      }
      wait();
      ok(clReleaseEvent(before));
    }
  }

  cl_event passed() {
    cl_event event = nullptr;
    launch_on(0, 0, nullptr, &event);
    ok(clWaitForEvents(1, &event));
    return event;
  }

  double event_query(int64_t repetitions) {
    const cl_event event = passed();
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) {
      cl_int state = CL_QUEUED;
      ok(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr));
      if (state != CL_COMPLETE) throw std::runtime_error("an event that had passed has not");
    }
    const double nanoseconds = bench::now_ns() - start;
    ok(clReleaseEvent(event));
    return nanoseconds;
  }

  double event_wait_done(int64_t repetitions) {
    const cl_event event = passed();
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) ok(clWaitForEvents(1, &event));
    const double nanoseconds = bench::now_ns() - start;
    ok(clReleaseEvent(event));
    return nanoseconds;
  }

  cl_command_buffer_khr make_chain(int nodes) {
    cl_int code = CL_SUCCESS;
    const cl_command_buffer_khr buffer = buffers_.create(1, queues_, nullptr, &code);
    ok(code);
    for (int i = 0; i < nodes; ++i) {
      ok(buffers_.launch(buffer, nullptr, nullptr, kernel_, 1, nullptr, &ONE, &ONE, 0, nullptr, nullptr, nullptr));
    }
    ok(buffers_.finalize(buffer));
    return buffer;
  }

  double chain(int nodes, int64_t repetitions) {
    if (!buffers_) {
      return bench::timed([&](int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          for (int node = 0; node < nodes; ++node) launch_on(0);
          ok(clFinish(queues_[0]));
        }
      })(repetitions);
    }
    const cl_command_buffer_khr buffer = make_chain(nodes);
    const double nanoseconds = bench::timed([&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        ok(buffers_.enqueue(0, nullptr, buffer, 0, nullptr, nullptr));
        ok(clFinish(queues_[0]));
      }
    })(repetitions);
    ok(buffers_.release(buffer));
    return nanoseconds;
  }

  double record(int64_t repetitions) {
    if (!buffers_) throw std::runtime_error("it has no command buffers");
    double nanoseconds = 0;
    for (int64_t i = 0; i < repetitions; ++i) {
      const double start = bench::now_ns();
      const cl_command_buffer_khr buffer = make_chain(bench::CHAIN);
      nanoseconds += bench::now_ns() - start;
      ok(buffers_.release(buffer));
    }
    return nanoseconds;
  }
};

int program() {
  Subject subject;
  return bench::serve(subject.version(), subject.measures());
}

}  // namespace

int main() { return bench::serve_or_say(program); }
