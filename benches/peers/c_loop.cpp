// The floor: a plain loop over function pointers with their argument blocks, in order, on one thread. It also
// says how many passes a spinning node makes in the time that all programs are to give it.

#include <vector>

#include "../native/wire.h"
#include "../native/work.h"

namespace {

struct Node {
  bench::Kernel kernel;
  const void* args;
  uint32_t size;
};

void replay(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    if (node.kernel(node.args, node.size, 0) != 0) throw std::runtime_error("a node failed");
  }
}

struct Subject {
  explicit Subject(uint64_t passes) : values(bench::WIDTH * bench::STRIDE) {
    for (int i = 0; i < bench::WIDTH; ++i) {
      const uint64_t address = reinterpret_cast<uint64_t>(&values[i * bench::STRIDE]);
      add_args.push_back({address});
      spin_args.push_back({address, passes});
    }
    chain_args.assign(bench::CHAIN, add_args[0]);
  }

  std::vector<float> values;
  std::vector<bench::AddArgs> add_args, chain_args;
  std::vector<bench::SpinArgs> spin_args;

  void clear() { values.assign(values.size(), 0.0f); }

  std::vector<Node> chain_nodes(int count) const {
    std::vector<Node> nodes;
    for (int i = 0; i < count; ++i) {
      nodes.push_back({bench::add_one, &chain_args[i], sizeof chain_args[i]});
    }
    return nodes;
  }

  double chain(int count, int64_t repetitions) {
    clear();
    const std::vector<Node> nodes = chain_nodes(count);
    const double nanoseconds = bench::timed([&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) replay(nodes);
    })(repetitions);
    bench::expect_additions(values[0], repetitions * count);
    return nanoseconds;
  }

  template <typename Args>
  double wide(bench::Kernel kernel, const std::vector<Args>& args, int64_t repetitions) {
    std::vector<Node> nodes;
    for (int layer = 0; layer < bench::LAYERS; ++layer) {
      for (const Args& block : args) nodes.push_back({kernel, &block, sizeof block});
    }
    return bench::timed([&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) replay(nodes);
    })(repetitions);
  }

  // Writes another address into every argument block before each replay.
  double rebind(int64_t repetitions) {
    clear();
    const std::vector<Node> nodes = chain_nodes(bench::CHAIN);
    const double nanoseconds = bench::timed([&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t address = add_args[i & 1].address;
        for (bench::AddArgs& args : chain_args) args.address = address;
        replay(nodes);
      }
    })(repetitions);
    chain_args.assign(bench::CHAIN, add_args[0]);
    bench::expect_additions(values[0], (repetitions + 1) / 2 * bench::CHAIN);
    bench::expect_additions(values[bench::STRIDE], repetitions / 2 * bench::CHAIN);
    return nanoseconds;
  }

  // One node of so many passes.
  double passes(int64_t count) {
    const bench::SpinArgs args{spin_args[0].address, static_cast<uint64_t>(count)};
    return bench::timed([&](int64_t) { bench::spin(&args, sizeof args, 0); })(1);
  }
};

int program(uint64_t passes) {
  Subject subject(passes);
  return bench::serve(
      "compiled by " __VERSION__,
      {
          {"passes", [&](int64_t n) { return subject.passes(n); }},
          {"chain_1", [&](int64_t n) { return subject.chain(1, n); }},
          {"chain_1000", [&](int64_t n) { return subject.chain(bench::CHAIN, n); }},
          {"wide8", [&](int64_t n) { return subject.wide(bench::add_one, subject.add_args, n); }},
          {"wide8_spin", [&](int64_t n) { return subject.wide(bench::spin, subject.spin_args, n); }},
          {"rebind", [&](int64_t n) { return subject.rebind(n); }},
      });
}

}  // namespace

int main(int argc, char** argv) {
  return bench::serve_or_say([&] { return program(bench::passes_of(argc, argv)); });
}
