// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A host whose functions throw. `unwinding_host NAME` has the function of that name throw while the library
// calls it: rule H4 says that the process ends there. Whatever gets out of the library all the same is
// caught and told by the exit code: 3 for an exception, 0 for a call that went on as if nothing was.

#include <outrigger/framework.h>
#include <outrigger/outrigger.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace {

constexpr std::uint32_t kDevice = 0, kNoFlags = 0;
constexpr std::int32_t kPriority = 0;
constexpr otr_pool_t kNoPool = 0;
constexpr std::uint64_t kBytes = 1 << 20;

[[noreturn]] void fail() { throw std::runtime_error("a host function failed"); }

std::int32_t call(void*, std::int32_t) { fail(); }
std::int32_t node(void*, std::int64_t, std::int32_t) { fail(); }
std::int32_t passes(void*, std::int64_t, std::int32_t) { return OTR_OK; }
std::int32_t kernel(const void*, std::uint32_t, std::int64_t) { fail(); }
void destroy(void*) { fail(); }
void observer(void*, const otr_observation_t*) { fail(); }
std::uint32_t pressure(void*, std::uint32_t, std::uint64_t) { fail(); }
std::uint64_t capture(void*) { fail(); }
std::uint64_t captures(void*) { return 7; }
void release(void*, std::uint64_t) { fail(); }
void frames(void*, std::uint64_t, otr_frame_fn, void*) { fail(); }
void parallel(std::int64_t, std::int64_t, std::int64_t, otr_parallel_body_fn, void*) { fail(); }

// A failure that the test does not ask for.
void must(otr_status_t* status) {
  if (status != nullptr) std::exit(4);
}

otr_stream_t stream() {
  otr_stream_t stream = 0;
  must(otr_stream_create(kDevice, kPriority, &stream));
  return stream;
}

std::uint64_t memory(otr_stream_t on, std::uint64_t size = kBytes) {
  std::uint64_t address = 0;
  otr_status_free(otr_memory_alloc(kDevice, size, on, &address));
  return address;
}

otr_host_node_t host(otr_host_node_fn function, otr_destroy_fn destroy) {
  otr_host_node_t host{};
  host.struct_size = sizeof host;
  host.function = function;
  host.destroy = destroy;
  return host;
}

otr_host_kernel_call_t launch() {
  otr_host_kernel_call_t call{};
  call.struct_size = sizeof call;
  call.function = kernel;
  return call;
}

void observe(std::uint32_t kinds) {
  otr_observer_t id = 0;
  must(otr_observer_add(kinds, observer, nullptr, &id));
}

void keep_history(otr_context_capture_fn capture, otr_context_release_fn release,
                  otr_context_frames_fn frames) {
  otr_history_options_t options{};
  options.struct_size = sizeof options;
  options.entries = 16;
  options.capture = capture;
  options.release = release;
  options.frames = frames;
  must(otr_memory_history_start(kDevice, &options));
}

// What a capture of this stream was made of, ready to run.
otr_graph_exec_t captured(otr_stream_t on, std::uint32_t flags) {
  otr_graph_t graph = 0;
  otr_graph_exec_t exec = 0;
  must(otr_capture_end(on, &graph));
  must(otr_graph_instantiate(graph, flags, &exec));
  must(otr_graph_destroy(graph));
  return exec;
}

void replay(otr_stream_t on, std::uint32_t flags) {
  const auto exec = captured(on, flags);
  must(otr_graph_replay(exec, on));
  otr_status_free(otr_stream_synchronize(on));
}

void run(const char* name) {
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  const auto on = stream();
  if (is("host_call")) {
    must(otr_host_call(on, call, nullptr));
    otr_status_free(otr_stream_synchronize(on));
  } else if (is("host_node")) {
    const auto what = host(node, nullptr);
    must(otr_host_node(on, &what));
    otr_status_free(otr_stream_synchronize(on));
  } else if (is("destroy")) {
    const auto what = host(passes, destroy);
    must(otr_host_node(on, &what));
    otr_status_free(otr_stream_synchronize(on));
  } else if (is("kernel")) {
    const auto what = launch();
    must(otr_host_kernel_launch(on, &what));
    otr_status_free(otr_stream_synchronize(on));
  } else if (is("replayed_call") || is("submitted_call") || is("native_call")) {
    must(otr_capture_begin(on, OTR_CAPTURE_GLOBAL, kNoPool));
    must(otr_host_call(on, call, nullptr));
    replay(on, is("replayed_call") ? kNoFlags : is("submitted_call") ? OTR_GRAPH_SUBMIT : OTR_GRAPH_NATIVE);
  } else if (is("replayed_node") || is("submitted_node") || is("native_node")) {
    const auto what = host(node, nullptr);
    must(otr_capture_begin(on, OTR_CAPTURE_GLOBAL, kNoPool));
    must(otr_host_node(on, &what));
    replay(on, is("replayed_node") ? kNoFlags : is("submitted_node") ? OTR_GRAPH_SUBMIT : OTR_GRAPH_NATIVE);
  } else if (is("replayed_kernel")) {
    const auto what = launch();
    must(otr_capture_begin(on, OTR_CAPTURE_GLOBAL, kNoPool));
    must(otr_host_kernel_launch(on, &what));
    replay(on, kNoFlags);
  } else if (is("destroy_of_graph")) {
    const auto what = host(passes, destroy);
    must(otr_capture_begin(on, OTR_CAPTURE_GLOBAL, kNoPool));
    must(otr_host_node(on, &what));
    must(otr_graph_exec_destroy(captured(on, kNoFlags)));
  } else if (is("observer")) {
    observe(OTR_OBSERVE_ALLOC);
    memory(on);
  } else if (is("observer_of_frees")) {
    const auto address = memory(on);
    observe(OTR_OBSERVE_FREE);
    otr_status_free(otr_memory_free(kDevice, address));
  } else if (is("observer_of_segments")) {
    observe(OTR_OBSERVE_SEGMENT_ALLOC);
    memory(on);
  } else if (is("observer_of_released_segments")) {
    otr_status_free(otr_memory_free(kDevice, memory(on)));
    observe(OTR_OBSERVE_SEGMENT_FREE);
    otr_status_free(otr_stream_synchronize(on));
    otr_status_free(otr_memory_empty_cache(kDevice));
  } else if (is("observer_of_failures")) {
    observe(OTR_OBSERVE_OUT_OF_MEMORY);
    memory(on, UINT64_C(1) << 50);
  } else if (is("observer_of_fallbacks")) {
    std::uint32_t warning = 0;
    must(otr_fallback_begin("nothing", &warning));
    observe(OTR_OBSERVE_FALLBACK);
    otr_status_free(otr_fallback_end("nothing", 1, 1));
  } else if (is("pressure")) {
    otr_observer_t id = 0;
    must(otr_observer_add_pressure(pressure, nullptr, &id));
    must(otr_memory_set_limit(kDevice, kBytes));
    memory(on, 4 * kBytes);
  } else if (is("context_capture")) {
    keep_history(capture, nullptr, nullptr);
    memory(on);
  } else if (is("context_release")) {
    keep_history(captures, release, nullptr);
    otr_status_free(otr_memory_free(kDevice, memory(on)));
    otr_status_free(otr_memory_history_stop(kDevice));
  } else if (is("context_frames")) {
    keep_history(captures, nullptr, frames);
    memory(on);
    char* json = nullptr;
    otr_status_free(otr_memory_snapshot(kDevice, &json));
  } else if (is("parallel_for")) {
    must(otr_set_threads(4));
    must(otr_set_parallel_for(parallel));
    const auto address = memory(on, 64 * kBytes);
    const std::uint8_t byte = 1;
    must(otr_capture_begin(on, OTR_CAPTURE_GLOBAL, kNoPool));
    must(otr_fill(on, address, 64 * kBytes, &byte, 1));
    replay(on, kNoFlags);
  } else {
    std::exit(5);
  }
}

// The face in C++ catches what a function throws: it is the failure of the stream.
bool face() {
  const auto failed = [](const otr::StreamRef& on) {
    try {
      on.synchronize();
    } catch (const otr::Error& error) {
      return error.code() == OTR_ERR_EXECUTION;
    }
    return false;
  };
  const auto throws = [](std::int32_t) -> std::int32_t { fail(); };
  const auto on = otr::Stream::create(otr::Device(kDevice));
  on.host(throws);
  if (!failed(on)) return false;
  auto capture = otr::Capture::begin(on);
  on.host(throws);
  const auto exec = capture.end().instantiate();
  exec.replay(on);
  if (!failed(on)) return false;
  on.synchronize();
  return true;
}

// What a registered function throws is the failure of the operator's call.
bool registered() {
  const auto on = otr::Stream::create(otr::Device(kDevice));
  const auto op = otr::Operator::find("unwinding::registered");
  const auto fails = [&](std::int32_t code, const char* part) {
    try {
      on.call(op, {}, {});
    } catch (const otr::Error& error) {
      return error.code() == code && std::strstr(error.what(), part) != nullptr;
    }
    return false;
  };
  int calls = 0;
  const auto function = [&calls](otr::StreamRef stream, otr::Operator self, const otr_operator_call_t& call) {
    switch (calls++) {
      case 0: throw std::runtime_error("the host is tired");
      case 1: throw 7;
      case 2: stream.fill(8, 64, std::uint8_t{1}); return;  // no memory of the device
      case 3: stream.call(self, call); return;              // nobody comes after it
      default: return;
    }
  };
  {
    const auto served = otr::OperatorRegistration::create("unwinding::registered", "the test", function);
    if (!fails(OTR_ERR_EXECUTION, "the host is tired") || !fails(OTR_ERR_EXECUTION, "no std::exception") ||
        !fails(OTR_ERR_INVALID_ARGUMENT, "(registered by the test)") || !fails(OTR_ERR_UNSUPPORTED, "")) {
      return false;
    }
    on.call(op, {}, {});
    bool refused = false;
    try {
      otr::OperatorRegistration::create("unwinding::registered", "another", function);
    } catch (const otr::Error& error) {
      refused = error.code() == OTR_ERR_BUSY && std::strstr(error.what(), "another") != nullptr;
    }
    if (!refused) return false;
  }
  return fails(OTR_ERR_UNSUPPORTED, "") && calls == 5;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 5;
  try {
    if (std::strcmp(arguments[1], "face") == 0) return face() ? 0 : 6;
    if (std::strcmp(arguments[1], "registered") == 0) return registered() ? 0 : 6;
    run(arguments[1]);
  } catch (...) {
    return 3;
  }
  return 0;
}
