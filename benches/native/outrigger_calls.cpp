// So many calls of the C ABI, and nothing else: what `cargo xtask bench layers` counts the instructions of.

#include <cstdio>
#include <exception>

#include "outrigger.h"

namespace {

constexpr int ROUNDS = 2000;
constexpr int64_t FLOATS = 64;

struct Program {
  otr_stream_t streams[2] = {bench::make_stream(), bench::make_stream()};
  otr_event_t event = bench::make_event();
  bench::DeviceFloats floats{streams[0], FLOATS};
  bench::AddArgs args{floats.address()};
  otr_host_kernel_call_t kernel = bench::kernel_call(bench::add_one, args, bench::TINY_NS);
  otr_operator_id_t neg = 0;

  Program() { bench::ok(otr_operator_find("neg", &neg)); }

  void round() const {
    constexpr uint64_t BYTES = FLOATS * sizeof(float);
    using bench::ok;
    otr_address_t memory = 0;
    ok(otr_memory_alloc(0, BYTES, streams[0], &memory));
    ok(otr_copy(streams[0], memory, floats.address(), BYTES, OTR_COPY_DEVICE_TO_DEVICE));
    ok(otr_host_kernel_launch(streams[0], &kernel));

    const int64_t stride = 1;
    const otr_tensor_t tensor{memory, OTR_DTYPE_F32, 1, &FLOATS, &stride};
    otr_operator_call_t call{};
    call.struct_size = sizeof call;
    call.inputs = call.outputs = &tensor;
    call.input_count = call.output_count = 1;
    ok(otr_operator_call(streams[0], neg, &call));

    ok(otr_event_record(event, streams[0]));
    ok(otr_stream_wait_event(streams[1], event));
    ok(otr_memory_free(0, memory));
    ok(otr_stream_synchronize(streams[1]));
    ok(otr_stream_synchronize(streams[0]));
  }
};

}  // namespace

// The name is what the counting begins and ends with. Calls of a first round make what lasts.
extern "C" [[gnu::noinline]] void outrigger_counted_rounds(const void* program) {
  for (int round = 0; round < ROUNDS; ++round) static_cast<const Program*>(program)->round();
}

int main() {
  try {
    const Program program;
    program.round();
    outrigger_counted_rounds(&program);
    bench::expect_additions(program.floats.at(0), ROUNDS + 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
