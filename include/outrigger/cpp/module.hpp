// SPDX-License-Identifier: MIT OR Apache-2.0
//
// outrigger/cpp/module.hpp: code for a device, its kernels, and launches. Included by outrigger/outrigger.hpp. An object
// stands for one handle; it must never keep memory or streams alive beside what the library keeps itself.

#ifndef OUTRIGGER_CPP_MODULE_HPP
#define OUTRIGGER_CPP_MODULE_HPP

#include <outrigger/cpp/core.hpp>

#include <cstring>
#include <string_view>
#include <vector>

namespace otr {
inline namespace OTR_CPP_FACE {

/// The language or form of code.
enum class CodeFormat : otr_code_format_t {
  spirv = OTR_CODE_SPIRV,
  ptx = OTR_CODE_PTX,
  elf = OTR_CODE_ELF,
  opencl_c = OTR_CODE_OPENCL_C,
  cuda_c = OTR_CODE_CUDA_C,
};

/// A number in each of up to three dimensions: {64} is 64 times 1 times 1.
struct Extent {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
};

/// How a kernel is spread over a device.
struct Grid {
  Extent groups;                   ///< work-groups
  Extent items;                    ///< work-items of a group
  std::uint32_t shared_bytes = 0;  ///< local memory of a group besides that of its arguments
};

/// The arguments of a launch, in the order of the kernel's parameters.
class Arguments {
 public:
  /// The address of device memory; 0 is a NULL pointer.
  Arguments& address(otr_address_t address) { return append(&address, sizeof address, OTR_ARGUMENT_ADDRESS); }
  Arguments& buffer(const Buffer& buffer) { return address(buffer.address()); }
  /// A value, of just the type of the parameter.
  template <class T>
  Arguments& value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>, "a value is plain bytes");
    static_assert(alignof(T) <= 16, "no parameter of a kernel needs more");
    return append(&value, sizeof value, OTR_ARGUMENT_VALUE, alignof(T));
  }
  /// Local memory of a group.
  Arguments& local(std::uint32_t bytes) {
    parts_.push_back({0, bytes, OTR_ARGUMENT_LOCAL});
    return *this;
  }

  /// The launch as C has it. It points into this object.
  [[nodiscard]] otr_launch_t raw(const Grid& grid) const noexcept {
    auto launch = sized<otr_launch_t>();
    fill(launch.grid, grid.groups);
    fill(launch.block, grid.items);
    launch.shared_bytes = grid.shared_bytes;
    launch.args = block_.data();
    launch.args_size = static_cast<std::uint32_t>(block_.size());
    launch.arguments = parts_.data();
    launch.argument_count = static_cast<std::uint32_t>(parts_.size());
    return launch;
  }

 private:
  static void fill(std::uint32_t (&numbers)[3], const Extent& extent) noexcept {
    numbers[0] = extent.x;
    numbers[1] = extent.y;
    numbers[2] = extent.z;
  }

  Arguments& append(const void* bytes, std::size_t size, std::uint32_t kind, std::size_t alignment = 8) {
    const std::size_t offset = (block_.size() + alignment - 1) / alignment * alignment;
    block_.resize(offset + size);
    std::memcpy(block_.data() + offset, bytes, size);
    parts_.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size), kind});
    return *this;
  }

  std::vector<unsigned char> block_;
  std::vector<otr_argument_t> parts_;
};

/// A kernel of a module. Destroyed with its object, without waiting: launches that were submitted still run.
class Kernel {
 public:
  [[nodiscard]] otr_kernel_t id() const noexcept { return handle_.get(); }
  /// Launches it in stream order, and returns at once.
  Outcome<> launch(StreamRef stream, const Grid& grid, const Arguments& arguments) const {
    const otr_launch_t launch = arguments.raw(grid);
    return detail::done(otr_kernel_launch(stream.id(), id(), &launch));
  }

 private:
  friend class Module;
  explicit Kernel(otr_kernel_t kernel) noexcept : handle_(kernel) {}
  detail::Owned<otr_kernel_destroy> handle_;
};

/// Code that is loaded on a device. Its kernels live on without it.
class Module {
 public:
  /// Loads code: at once, or on threads of the library with OTR_MODULE_BACKGROUND as `flags`. The error of code that
  /// does not compile has the compiler's log.
  static Outcome<Module> load(Device device, CodeFormat format, std::string_view code, const char* options = nullptr,
                              std::uint32_t flags = 0) {
    auto params = sized<otr_module_params_t>();
    params.code = code.data();
    params.size = code.size();
    params.options = options;
    params.format = static_cast<otr_code_format_t>(format);
    params.flags = flags;
    otr_module_t module = 0;
    return detail::done(otr_module_load(device.index(), &params, &module), [&module] { return Module(module); });
  }
  [[nodiscard]] otr_module_t id() const noexcept { return handle_.get(); }
  /// Whether it is loaded. Never waits.
  [[nodiscard]] Outcome<bool> loaded() const {
    std::uint32_t yes = 0;
    return detail::done(otr_module_query(id(), &yes), [&yes] { return yes != 0; });
  }
  /// A kernel by its name; NULL for the only one. Waits until the code is compiled.
  [[nodiscard]] Outcome<Kernel> kernel(const char* name) const {
    otr_kernel_t kernel = 0;
    return detail::done(otr_kernel_get(id(), name, &kernel), [&kernel] { return Kernel(kernel); });
  }

 private:
  explicit Module(otr_module_t module) noexcept : handle_(module) {}
  detail::Owned<otr_module_destroy> handle_;
};

}  // namespace OTR_CPP_FACE
}  // namespace otr

#endif  // OUTRIGGER_CPP_MODULE_HPP
