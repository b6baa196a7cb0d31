// Outrigger's side of the suite `graph`: capture, instantiate, replay, rebind and update, through the C ABI.

#include "outrigger.h"
#include "wire.h"

namespace {

using bench::ok;

// Owns a graph and what can be replayed of it.
struct Replayable {
  otr_graph_t graph = 0;
  otr_graph_exec_t exec = 0;

  Replayable() = default;
  Replayable(const Replayable&) = delete;
  Replayable& operator=(const Replayable&) = delete;
  ~Replayable() {
    // A failure here has nobody to go to: the process is about to end, or another failure is on its way.
    if (exec != 0) otr_status_free(otr_graph_exec_destroy(exec));
    if (graph != 0) otr_status_free(otr_graph_destroy(graph));
  }
};

// Every measure makes its graph anew, outside of what it times, so that none sees what another one left.
struct Subject {
  explicit Subject(uint64_t passes) : passes(passes) {
    for (otr_stream_t& stream : streams) stream = bench::make_stream();
    for (otr_event_t& event : events) event = bench::make_event();
  }

  uint64_t passes;
  otr_stream_t stream = bench::make_stream();
  otr_stream_t streams[bench::WIDTH];
  otr_event_t events[bench::WIDTH];
  bench::DeviceFloats value{stream, 1};
  bench::DeviceFloats other{stream, 1};
  bench::DeviceFloats wide_values{stream, bench::WIDTH * bench::STRIDE};

  void begin() const { ok(otr_capture_begin(streams[0], OTR_CAPTURE_THREAD_LOCAL, 0)); }
  void end(Replayable& made) const { ok(otr_capture_end(streams[0], &made.graph)); }
  static void instantiate(Replayable& made) { ok(otr_graph_instantiate(made.graph, 0, &made.exec)); }

  // Additions to the float at `address`, one after the other.
  void capture_chain(Replayable& made, int nodes, uint64_t address) const {
    const bench::AddArgs args{address};
    const otr_host_kernel_call_t call = bench::kernel_call(bench::add_one, args, bench::TINY_NS);
    begin();
    for (int i = 0; i < nodes; ++i) ok(otr_host_kernel_launch(streams[0], &call));
    end(made);
  }

  void launch_tiny(otr_stream_t on, int position) const {
    const bench::AddArgs args{wide_values.address(position * bench::STRIDE)};
    const otr_host_kernel_call_t call = bench::kernel_call(bench::add_one, args, bench::TINY_NS);
    ok(otr_host_kernel_launch(on, &call));
  }

  void launch_spin(otr_stream_t on, int position) const {
    const bench::SpinArgs args{wide_values.address(position * bench::STRIDE), passes};
    const otr_host_kernel_call_t call = bench::kernel_call(bench::spin, args, bench::SPIN_NS);
    ok(otr_host_kernel_launch(on, &call));
  }

  // Layers of independent nodes on as many streams. Between two layers all streams wait for all: the first
  // waits for the others, and they for it.
  template <typename Launch>
  void capture_wide(Replayable& made, const Launch& launch) const {
    begin();
    for (int layer = 0; layer < bench::LAYERS; ++layer) {
      fork();
      for (int i = 0; i < bench::WIDTH; ++i) launch(streams[i], i);
      join();
    }
    end(made);
  }

  void fork() const {
    ok(otr_event_record(events[0], streams[0]));
    for (int i = 1; i < bench::WIDTH; ++i) ok(otr_stream_wait_event(streams[i], events[0]));
  }

  void join() const {
    for (int i = 1; i < bench::WIDTH; ++i) {
      ok(otr_event_record(events[i], streams[i]));
      ok(otr_stream_wait_event(streams[0], events[i]));
    }
  }

  // Replays of which each has finished before the next one; the first is not timed.
  double replay(const Replayable& made, int64_t repetitions) const {
    const auto block = [&](int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        ok(otr_graph_replay(made.exec, stream));
        ok(otr_stream_synchronize(stream));
      }
    };
    block(1);
    return bench::timed(block)(repetitions);
  }

  double chain(int nodes, int64_t repetitions) const {
    Replayable made;
    capture_chain(made, nodes, value.address());
    instantiate(made);
    value.clear();
    const double nanoseconds = replay(made, repetitions);
    bench::expect_additions(value.at(0), (repetitions + 1) * nodes);
    return nanoseconds;
  }

  double wide8(int64_t repetitions) const {
    Replayable made;
    capture_wide(made, [this](otr_stream_t on, int position) { launch_tiny(on, position); });
    instantiate(made);
    wide_values.clear();
    const double nanoseconds = replay(made, repetitions);
    for (int i = 0; i < bench::WIDTH; ++i) {
      bench::expect_additions(wide_values.at(i * bench::STRIDE), (repetitions + 1) * bench::LAYERS);
    }
    return nanoseconds;
  }

  double wide8_spin(int64_t repetitions) const {
    Replayable made;
    capture_wide(made, [this](otr_stream_t on, int position) { launch_spin(on, position); });
    instantiate(made);
    return replay(made, repetitions);
  }

  // Binds another float before each replay of the long chain, so that every node has its argument changed.
  double rebind(int64_t repetitions) const {
    Replayable made;
    capture_chain(made, bench::CHAIN, value.address());
    ok(otr_graph_name_buffer(made.graph, "value", value.address(), sizeof(float)));
    instantiate(made);
    uint32_t slot = 0;
    ok(otr_graph_slot(made.exec, "value", &slot));
    value.clear();
    other.clear();
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) {
      ok(otr_graph_bind(made.exec, slot, (i & 1) ? value.address() : other.address()));
      ok(otr_graph_replay(made.exec, stream));
      ok(otr_stream_synchronize(stream));
    }
    const double nanoseconds = bench::now_ns() - start;
    bench::expect_additions(value.at(0), repetitions / 2 * bench::CHAIN);
    bench::expect_additions(other.at(0), (repetitions + 1) / 2 * bench::CHAIN);
    return nanoseconds;
  }

  double capture(int64_t repetitions) const {
    double nanoseconds = 0;
    for (int64_t i = 0; i < repetitions; ++i) {
      Replayable made;
      const double start = bench::now_ns();
      capture_chain(made, bench::CHAIN, value.address());
      instantiate(made);
      nanoseconds += bench::now_ns() - start;
    }
    return nanoseconds;
  }

  // Updates of the long chain, each to a graph of which every node has another address.
  double update(int64_t repetitions) const {
    Replayable made, changed;
    capture_chain(made, bench::CHAIN, value.address());
    capture_chain(changed, bench::CHAIN, other.address());
    instantiate(made);
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) {
      ok(otr_graph_update(made.exec, (i & 1) ? made.graph : changed.graph));
    }
    const double nanoseconds = bench::now_ns() - start;
    ok(otr_graph_update(made.exec, changed.graph));
    other.clear();
    replay(made, 1);
    bench::expect_additions(other.at(0), 2 * bench::CHAIN);
    return nanoseconds;
  }
};

int program(uint64_t passes) {
  const Subject subject(passes);
  return bench::serve(
      bench::outrigger_version(),
      {
          {"chain_1", [&](int64_t n) { return subject.chain(1, n); }},
          {"chain_1000", [&](int64_t n) { return subject.chain(bench::CHAIN, n); }},
          {"wide8", [&](int64_t n) { return subject.wide8(n); }},
          {"wide8_spin", [&](int64_t n) { return subject.wide8_spin(n); }},
          {"rebind", [&](int64_t n) { return subject.rebind(n); }},
          {"capture", [&](int64_t n) { return subject.capture(n); }},
          {"update", [&](int64_t n) { return subject.update(n); }},
      });
}

}  // namespace

int main(int argc, char** argv) {
  return bench::serve_or_say([&] { return program(bench::passes_of(argc, argv)); });
}
