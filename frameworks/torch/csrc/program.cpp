//! The size of a kernel's groups, and the function that runs groups on the host. It must never wait.

#include "program.h"

#include "memory.h"
#include "share_work.h"
#include "trial.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

namespace outrigger {
namespace {

/// The beginning of a host function's argument block, in front of the words.
struct Head {
  Groups run;
  int64_t groups;
  int64_t grain;
  uint64_t addresses;
};

/// Work of one thread, in elements, below which sharing costs more than it saves; that of torch's own loops.
constexpr int64_t kGrain = 32768;

/// Elements of a group where a thread runs it, and items of a group where many do, for each of its lanes.
constexpr int64_t kSerialChunk = 4096;
constexpr int64_t kItemsOfLane = 4;

/// Runs all groups of a launch, on one thread if they are to be alone there.
otr_code_t run_block(const void* block, uint32_t size, int64_t bias, bool alone) {
  Head head;
  std::memcpy(&head, block, sizeof head);
  c10::SmallVector<uint64_t, 48> words((size - sizeof head) / sizeof(uint64_t));
  std::memcpy(words.data(), static_cast<const char*>(block) + sizeof head, words.size() * sizeof(uint64_t));
  for (uint64_t i = 0; i < head.addresses; ++i) {
    words[i] += words[i] == 0 ? 0 : static_cast<uint64_t>(bias);
  }
  if (alone || head.groups <= head.grain) {
    return head.run(words.data(), 0, head.groups);
  }
  std::atomic<otr_code_t> failure{OTR_OK};
  try {
    share_work(0, head.groups, head.grain, [&](int64_t first, int64_t end) {
      const otr_code_t found = head.run(words.data(), first, end);
      if (found != OTR_OK) {
        failure.store(found, std::memory_order_relaxed);
      }
    });
  } catch (...) {
    return OTR_ERR_INTERNAL;
  }
  return failure.load(std::memory_order_relaxed);
}

/// The function that the runtime calls: it knows nothing of Python.
otr_code_t run_groups(const void* block, uint32_t size, int64_t bias) {
  return run_block(block, size, bias, false);
}

/// The same as a trial, which stands behind the words. It runs where the kernel would, so that it finds the memory as that does.
otr_code_t try_groups(const void* block, uint32_t size, int64_t bias) {
  uint64_t behind = 0;
  size -= sizeof behind;
  std::memcpy(&behind, static_cast<const char*>(block) + size, sizeof behind);
  Trial& trial = *reinterpret_cast<Trial*>(static_cast<uintptr_t>(behind));
  for (Trial::Bytes& one : trial.restored) {
    one.address += static_cast<uint64_t>(bias);
  }
  trial.run([&] { return run_block(block, size, bias, !trial.shared); });
  return OTR_OK;
}

/// Lets the stream fail with what the checks of a kernel have left. The block is the address of the word.
otr_code_t tell_failure(const void* block, uint32_t, int64_t bias) {
  uint64_t address = 0;
  std::memcpy(&address, block, sizeof address);
  otr_code_t found = OTR_OK;
  std::memcpy(&found, reinterpret_cast<const void*>(static_cast<uintptr_t>(address + static_cast<uint64_t>(bias))), sizeof found);
  return found;
}

}  // namespace

CompiledKernel::CompiledKernel(
    c10::Device on, const char* called, const char* shown, const std::string& takes, Extent many, Extent deep, bool whole_rows, uint32_t items_of_group)
    : device(on),
      name(called),
      label(shown),
      kinds(takes.substr(0, takes.find('c'))),
      items(many),
      reduced(deep),
      by_row(whole_rows),
      group_size(items_of_group),
      has_checks_(kinds.size() < takes.size()),
      addresses_(static_cast<uint32_t>(std::count(kinds.begin(), kinds.end(), 'a'))) {
  for (uint32_t i = 0; i < addresses_; ++i) {
    arguments_.push_back({i * 8, 8, OTR_ARGUMENT_ADDRESS});
    offsets_.push_back(static_cast<uint32_t>(sizeof(Head)) + i * 8);
  }
  uint32_t end = addresses_ * 8;
  if (has_checks_) {
    arguments_.push_back({end, 8, OTR_ARGUMENT_ADDRESS});
    end += 8;
  }
  const auto numbers = static_cast<uint32_t>(kinds.size()) - addresses_ + 1;
  arguments_.push_back({end, numbers * 8, OTR_ARGUMENT_VALUE});
}

void CompiledKernel::attempt(const uint64_t* values, Trial* trial) const {
  TORCH_CHECK(groups != nullptr, who(), "only a kernel that is a function of the host runs in a process of its own");
  const otr_stream_t stream = current_stream(device.index());
  synchronize(stream);
  launch(values, trial);
  synchronize(stream);
}

void CompiledKernel::launch(const uint64_t* values, Trial* trial) const {
  const int64_t count = items.of(values);
  if (count <= 0) {
    return;
  }
  // The elements of a group are told to the kernel, so that one text serves all sizes and all devices.
  const bool serial = group_size == 1;
  const int64_t deep = std::max<int64_t>(reduced.of(values), 1);
  int64_t chunk = 1;
  if (serial) {
    chunk = std::max<int64_t>(1, kSerialChunk / deep);
    if (!by_row) {
      // Whole cache lines of neighbours, which are read together.
      chunk = std::max<int64_t>(chunk, deep > 1 ? 64 : 1);
    }
  } else if (!by_row) {
    chunk = static_cast<int64_t>(group_size) * (deep > 1 ? 1 : kItemsOfLane);
  }
  constexpr int64_t most_groups = std::numeric_limits<int32_t>::max();
  chunk = std::max(chunk, (count + most_groups - 1) / most_groups);
  const int64_t all = (count + chunk - 1) / chunk;

  constexpr size_t head_words = sizeof(Head) / sizeof(uint64_t);
  c10::SmallVector<uint64_t, 48> words(head_words);
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == 'a') {
      words.push_back(values[i]);
    }
  }
  const otr_stream_t stream = current_stream(device.index());
  c10::DataPtr found;
  if (has_checks_ && groups == nullptr) {
    // Each launch has its own: others may run beside it.
    found = allocate(device, sizeof(otr_code_t));
    words.push_back(address_of(found.get()));
    const otr_code_t none = OTR_OK;
    check(otr_fill(stream, words.back(), sizeof none, &none, sizeof none));
  }
  words.push_back(static_cast<uint64_t>(chunk));
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != 'a') {
      words.push_back(values[i]);
    }
  }
  const double elements = static_cast<double>(count) * static_cast<double>(deep);
  const auto cost = static_cast<uint32_t>(std::min(elements * 0.5 + 100.0, 4e9));
  if (groups != nullptr) {
    const int64_t work = std::max<int64_t>(1, chunk * deep);
    const Head head{groups, all, std::max<int64_t>(1, kGrain / work), addresses_};
    std::memcpy(words.data(), &head, sizeof head);
    auto call = otr::sized<otr_host_kernel_call_t>();
    call.function = &run_groups;
    if (C10_UNLIKELY(trial != nullptr)) {
      call.function = &try_groups;
      words.push_back(reinterpret_cast<uintptr_t>(trial));
    }
    call.args = words.data();
    call.args_size = static_cast<uint32_t>(words.size() * sizeof(uint64_t));
    call.cost_ns = cost;
    call.label = label;
    call.address_offsets = offsets_.data();
    call.address_count = addresses_;
    check(otr_host_kernel_launch(stream, &call));
    return;
  }
  auto call = otr::sized<otr_launch_t>();
  call.grid[0] = static_cast<uint32_t>(all);
  call.grid[1] = call.grid[2] = call.block[1] = call.block[2] = 1;
  call.block[0] = group_size;
  call.args = words.data() + head_words;
  call.args_size = static_cast<uint32_t>((words.size() - head_words) * sizeof(uint64_t));
  call.arguments = arguments_.data();
  call.argument_count = static_cast<uint32_t>(arguments_.size());
  call.cost_ns = cost;
  call.label = label;
  check(otr_kernel_launch(stream, kernel, &call));
  if (has_checks_) {
    const uint64_t block = address_of(found.get());
    const uint32_t offset = 0;
    const otr_address_range_t range{sizeof(otr_code_t), 0, 0};
    auto look = otr::sized<otr_host_kernel_call_t>();
    look.function = &tell_failure;
    look.args = &block;
    look.args_size = sizeof block;
    look.label = label;
    look.address_offsets = &offset;
    look.address_count = 1;
    look.address_ranges = &range;
    check(otr_host_kernel_launch(stream, &look));
  }
}

}  // namespace outrigger
