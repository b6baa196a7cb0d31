//! Generators over the runtime's Philox state, and the 16-byte state tensor that torch passes around.
//! By torch's rules callers hold the generator's mutex, except to read.

#include "generator.h"

#include "capture.h"
#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <array>
#include <cstring>
#include <deque>
#include <mutex>

namespace outrigger {
namespace {

c10::DispatchKeySet keys_of(c10::DeviceType type) {
  return c10::DispatchKeySet(
      type == c10::DeviceType::MTIA ? c10::DispatchKey::MTIA : c10::DispatchKey::PrivateUse1);
}

// As in CUDA: seed, then offset, 8 bytes each.
constexpr size_t kStateBytes = 16;

/// A handle that is destroyed, if it is owned, when nobody has it any more.
std::shared_ptr<const otr_generator_t> shared(otr_generator_t handle, bool owned) {
  const auto give_up = [owned](const otr_generator_t* last) {
    if (owned) {
      warn_if_failed(otr_generator_destroy(*last), "destroying a generator");
    }
    delete last;
  };
  return {new otr_generator_t(handle), give_up};
}

}  // namespace

GeneratorImpl::GeneratorImpl(c10::Device device, otr_generator_t handle, bool owned)
    : GeneratorImpl(device, shared(handle, owned)) {}

GeneratorImpl::GeneratorImpl(c10::Device device, std::shared_ptr<const otr_generator_t> handle)
    : c10::GeneratorImpl(device, keys_of(device.type())), handle_(std::move(handle)) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  check(otr_generator_seed(handle(), seed));
}

void GeneratorImpl::refuse_capture(const char* what) const {
  TORCH_CHECK(
      !is_capturing(current_stream(device_.index())), who(), what, " in a capture: each replay has a state of its own. "
      "Read the whole state by get_state() and set it by set_state(), which replays follow, or do it outside of the capture");
}

void GeneratorImpl::set_offset(uint64_t offset) {
  refuse_capture("the offset of a generator cannot be set");
  check(otr_generator_set_state(handle(), current_seed(), offset));
}

uint64_t GeneratorImpl::get_offset() const {
  refuse_capture("the offset of a generator cannot be read");
  uint64_t seed = 0;
  uint64_t offset = 0;
  check(otr_generator_state(handle(), &seed, &offset));
  return offset;
}

uint64_t GeneratorImpl::current_seed() const {
  refuse_capture("the seed of a generator cannot be read");
  uint64_t seed = 0;
  uint64_t offset = 0;
  check(otr_generator_state(handle(), &seed, &offset));
  return seed;
}

uint64_t GeneratorImpl::seed() {
  refuse_capture("a generator cannot be given a seed by chance");
  const uint64_t fresh = c10::detail::getNonDeterministicRandom();
  set_current_seed(fresh);
  return fresh;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(
      state.numel() == static_cast<int64_t>(kStateBytes), who(), "the state of a generator has ",
      kStateBytes, " bytes (seed, offset), this tensor has ", state.numel());
  std::array<uint64_t, 2> values;
  std::memcpy(values.data(), state.data(), kStateBytes);
  check(otr_generator_set_state(handle(), values[0], values[1]));
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  std::array<uint64_t, 2> values = {};
  check(otr_generator_state(handle(), &values[0], &values[1]));
  at::TensorBase state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, c10::ScalarType::Byte);
  std::memcpy(state.mutable_data_ptr(), values.data(), kStateBytes);
  return state.getIntrusivePtr();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  TORCH_CHECK_VALUE(
      state->device() == device_, who(), "a generator of ", device_, " cannot take the state of one of ", state->device());
  handle_ = static_cast<const GeneratorImpl&>(*state).handle_;
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(new GeneratorImpl(device_, handle_));
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  uint64_t seed = 0;
  uint64_t offset = 0;
  check(otr_generator_state(handle(), &seed, &offset));
  otr_generator_t copy = 0;
  check(otr_generator_create(static_cast<uint32_t>(device_.index()), &copy));
  auto* made = new GeneratorImpl(device_, copy, /*owned=*/true);
  check(otr_generator_set_state(copy, seed, offset));
  return made;
}

Philox reserve(const std::optional<at::Generator>& generator, c10::Device device, uint64_t outputs) {
  const at::Generator& source =
      generator.has_value() && generator->defined() ? *generator : default_generator(device.type(), device.index());
  TORCH_CHECK(
      source.device().type() == device.type(), "Expected a '", device.type(),
      "' device type for generator but found '", source.device().type(), "'");
  auto* impl = static_cast<GeneratorImpl*>(source.unsafeGetGeneratorImpl());
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  Philox start = {};
  check(otr_generator_reserve(impl->handle(), outputs, &start.seed, &start.offset));
  return start;
}

const at::Generator& default_generator(c10::DeviceType type, c10::DeviceIndex index) {
  // Leaked on purpose, like the runtime's devices. A deque keeps references valid when it grows.
  static auto* lock = new std::mutex;
  static auto* made = new std::array<std::deque<at::Generator>, 2>;
  const c10::DeviceIndex exact = index < 0 ? current_device() : index;
  check_device(exact);
  const std::lock_guard<std::mutex> guard(*lock);
  auto& generators = (*made)[type == c10::DeviceType::MTIA ? 1 : 0];
  while (generators.size() <= static_cast<size_t>(exact)) {
    const auto next = static_cast<c10::DeviceIndex>(generators.size());
    otr_generator_t handle = 0;
    check(otr_generator_default(static_cast<uint32_t>(next), &handle));
    generators.push_back(at::make_generator<GeneratorImpl>(c10::Device(type, next), handle, /*owned=*/false));
  }
  return generators[static_cast<size_t>(exact)];
}

at::Generator new_generator(c10::DeviceType type, c10::DeviceIndex index) {
  const c10::DeviceIndex exact = index < 0 ? current_device() : index;
  check_device(exact);
  otr_generator_t handle = 0;
  check(otr_generator_create(static_cast<uint32_t>(exact), &handle));
  at::Generator made = at::make_generator<GeneratorImpl>(c10::Device(type, exact), handle, /*owned=*/true);
  made.set_current_seed(c10::default_rng_seed_val);
  return made;
}

}  // namespace outrigger
