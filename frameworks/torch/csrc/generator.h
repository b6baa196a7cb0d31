//! Random generators of a device: torch's handle of the runtime's Philox state (seed, offset). It must
//! never hold random state of its own: the only state is the runtime's.
#pragma once

#include "runtime.h"

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <memory>

namespace outrigger {

/// A generator of one device.
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  /// Takes a handle; `owned` says whether it is destroyed with the last object that has it.
  GeneratorImpl(c10::Device device, otr_generator_t handle, bool owned);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  /// Takes the state of another generator, which both have from now on.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  /// Another generator with this one's state.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  /// The runtime's handle.
  otr_generator_t handle() const {
    return *handle_;
  }

 private:
  GeneratorImpl* clone_impl() const override;
  /// Refuses what has no answer for all replays.
  void refuse_capture(const char* what) const;

  GeneratorImpl(c10::Device device, std::shared_ptr<const otr_generator_t> handle);

  std::shared_ptr<const otr_generator_t> handle_;
};

/// The start of a random operator's numbers.
struct Philox {
  uint64_t seed;
  uint64_t offset;
};

/// Takes `outputs` 128-bit numbers from a generator, or from the default one of the device.
Philox reserve(const std::optional<at::Generator>& generator, c10::Device device, uint64_t outputs);

/// The default generator of a device; index -1 is the current device.
const at::Generator& default_generator(c10::DeviceType type, c10::DeviceIndex index);

/// A new generator on a device; index -1 is the current device.
at::Generator new_generator(c10::DeviceType type, c10::DeviceIndex index);

}  // namespace outrigger
