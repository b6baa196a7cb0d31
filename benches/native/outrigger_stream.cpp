// Outrigger's side of the suite `stream`: launches, events and hops between streams, through the C ABI.

#include "outrigger.h"
#include "wire.h"

namespace {

using bench::ok;

constexpr int64_t BATCH = 64;   // launches or hops before the streams are waited for
constexpr int64_t DEEP = 1000;  // launches of `launch_deep` before the wait

struct Subject {
  otr_stream_t streams[2] = {bench::make_stream(), bench::make_stream()};
  otr_event_t events[2] = {bench::make_event(), bench::make_event()};
  bench::DeviceFloats value{streams[0], 1};
  bench::AddArgs args{value.address()};
  otr_host_kernel_call_t call = bench::kernel_call(bench::add_one, args, bench::TINY_NS);
  // Without a hint: the driver may take the kernel for a long one and wake a thread for it.
  otr_host_kernel_call_t unhinted = bench::kernel_call(bench::add_one, args, 0);

  void wait() const {
    ok(otr_stream_synchronize(streams[0]));
    ok(otr_stream_synchronize(streams[1]));
  }

  void launch_wait(int64_t repetitions) const {
    for (int64_t i = 0; i < repetitions; ++i) {
      ok(otr_host_kernel_launch(streams[0], &call));
      ok(otr_stream_synchronize(streams[0]));
    }
  }

  // The launches alone. After every `depth` the stream is waited for, outside of the time.
  double launch(const otr_host_kernel_call_t& kernel, int64_t depth, int64_t repetitions) const {
    double nanoseconds = 0;
    for (int64_t left = repetitions; left > 0; left -= depth) {
      const double start = bench::now_ns();
      for (int64_t i = std::min(left, depth); i > 0; --i) ok(otr_host_kernel_launch(streams[0], &kernel));
      nanoseconds += bench::now_ns() - start;
      ok(otr_stream_synchronize(streams[0]));
    }
    return nanoseconds;
  }

  // Each launch waits for the one before, on the other stream.
  void hops(int64_t repetitions) const {
    for (int64_t left = repetitions; left > 0; left -= BATCH) {
      for (int64_t i = 0; i < std::min(left, BATCH); ++i) {
        const int here = i & 1;
        ok(otr_host_kernel_launch(streams[here], &call));
        ok(otr_event_record(events[here], streams[here]));
        ok(otr_stream_wait_event(streams[1 - here], events[here]));
      }
      wait();
    }
  }

  // An event that has passed.
  otr_event_t passed() const {
    ok(otr_host_kernel_launch(streams[0], &call));
    ok(otr_event_record(events[0], streams[0]));
    ok(otr_event_synchronize(events[0]));
    return events[0];
  }

  double event_query(int64_t repetitions) const {
    const otr_event_t event = passed();
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) {
      uint32_t finished = 0;
      ok(otr_event_query(event, &finished));
      if (!finished) throw std::runtime_error("an event that had passed has not");
    }
    return bench::now_ns() - start;
  }

  double event_wait_done(int64_t repetitions) const {
    const otr_event_t event = passed();
    const double start = bench::now_ns();
    for (int64_t i = 0; i < repetitions; ++i) ok(otr_event_synchronize(event));
    return bench::now_ns() - start;
  }

  // `run`, and then a look at whether every launch has run once.
  bench::Measure counted(const char* name, std::function<double(int64_t)> run) const {
    return {name, [this, run = std::move(run)](int64_t repetitions) {
              value.clear();
              const double nanoseconds = run(repetitions);
              bench::expect_additions(value.at(0), repetitions);
              return nanoseconds;
            }};
  }
};

int program() {
  const Subject subject;
  return bench::serve(
      bench::outrigger_version(),
      {
          subject.counted("launch_wait", bench::timed([&](int64_t n) { subject.launch_wait(n); })),
          subject.counted("launch", [&](int64_t n) { return subject.launch(subject.call, BATCH, n); }),
          subject.counted("launch_deep", [&](int64_t n) { return subject.launch(subject.unhinted, DEEP, n); }),
          subject.counted("stream_hop", bench::timed([&](int64_t n) { subject.hops(n); })),
          {"event_query", [&](int64_t n) { return subject.event_query(n); }},
          {"event_wait_done", [&](int64_t n) { return subject.event_wait_done(n); }},
      });
}

}  // namespace

int main() { return bench::serve_or_say(program); }
