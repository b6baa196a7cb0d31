// SPDX-License-Identifier: MIT OR Apache-2.0
//
// outrigger/cpp/result.hpp: how a failed call reaches a C++ host. Included by outrigger/outrigger.hpp.
// It must never drop a status unread, but where a destructor cannot tell anybody.

#ifndef OUTRIGGER_CPP_RESULT_HPP
#define OUTRIGGER_CPP_RESULT_HPP

#include <outrigger/outrigger.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

// Define OTR_NO_EXCEPTIONS to get results instead of exceptions; without exceptions it is so anyway.
#if !defined(OTR_NO_EXCEPTIONS) && !defined(__cpp_exceptions) && !defined(__EXCEPTIONS)
#define OTR_NO_EXCEPTIONS
#endif

// The two faces have names of their own, so that translation units of both kinds can be linked together.
#ifdef OTR_NO_EXCEPTIONS
#define OTR_CPP_FACE results
#else
#define OTR_CPP_FACE exceptions
#endif

namespace otr {
inline namespace OTR_CPP_FACE {

/// Why a call failed. Copies share the status.
class Error : public std::exception {
 public:
  /// Takes a status over; it is not NULL.
  explicit Error(otr_status_t* status) : status_(status, &otr_status_free) {}

  /// A code of base.h, never OTR_OK.
  [[nodiscard]] std::int32_t code() const noexcept { return otr_status_code(status_.get()); }
  /// What was wrong, and what would be right.
  [[nodiscard]] const char* what() const noexcept override { return otr_status_message(status_.get()); }
  /// The operator that failed, or NULL.
  [[nodiscard]] const char* operator_name() const noexcept { return otr_status_operator(status_.get()); }
  /// The stream whose work failed, or 0.
  [[nodiscard]] otr_stream_t stream() const noexcept { return otr_status_stream(status_.get()); }
  /// The number of the failed command within its stream, from 1, or 0.
  [[nodiscard]] std::uint64_t submission() const noexcept {
    return otr_status_submission(status_.get());
  }

 private:
  std::shared_ptr<otr_status_t> status_;
};

/// A value or why there is none, for hosts without exceptions. As std::expected of C++23.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: as std::expected
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  /// The value. Without one, ends the process: ask first.
  T& operator*() & noexcept { return get(*this); }
  const T& operator*() const& noexcept { return get(*this); }
  T&& operator*() && noexcept { return std::move(get(*this)); }
  T* operator->() noexcept { return &get(*this); }
  const T* operator->() const noexcept { return &get(*this); }
  /// Why there is no value. With one, ends the process.
  [[nodiscard]] const Error& error() const noexcept {
    const Error* error = std::get_if<1>(&state_);
    if (error == nullptr) std::terminate();
    return *error;
  }

 private:
  template <class Self>
  static auto& get(Self& self) noexcept {
    auto* const value = std::get_if<0>(&self.state_);
    if (value == nullptr) std::terminate();
    return *value;
  }

  std::variant<T, Error> state_;
};

/// Success or why not.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: as std::expected

  [[nodiscard]] bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] const Error& error() const noexcept {
    if (!error_) std::terminate();
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

/// What every call that can fail returns: the value itself, and an Error is thrown; or with
/// OTR_NO_EXCEPTIONS a Result.
#ifdef OTR_NO_EXCEPTIONS
template <class T = void>
using Outcome = Result<T>;
#else
template <class T = void>
using Outcome = T;
#endif

/// A struct with its size set and nothing else, as the C functions want it.
template <class T>
T sized() noexcept {
  T value{};
  value.struct_size = sizeof value;
  return value;
}

/// A string that a C function handed out; frees it.
inline std::string take(char* text) {
  const std::unique_ptr<char, void (*)(char*)> owner(text, &otr_string_free);
  return text == nullptr ? std::string() : std::string(text);
}

namespace detail {

/// The outcome of a call that has nothing to hand out.
inline Outcome<> done(otr_status_t* status) {
#ifdef OTR_NO_EXCEPTIONS
  if (status != nullptr) return Error(status);
  return {};
#else
  if (status != nullptr) throw Error(status);
#endif
}

/// The outcome of a call: `make()` is what it handed out, and is called on success only.
template <class Make>
auto done(otr_status_t* status, Make&& make) -> Outcome<decltype(make())> {
#ifdef OTR_NO_EXCEPTIONS
  if (status != nullptr) return Error(status);
#else
  if (status != nullptr) throw Error(status);
#endif
  return std::forward<Make>(make)();
}

/// Drops what a destructor has nobody to tell.
inline void ignore(otr_status_t* status) noexcept { otr_status_free(status); }

/// A call that hands out a string.
template <class Call>
Outcome<std::string> text_of(Call&& call) {
  char* text = nullptr;
  otr_status_t* const status = call(&text);
  return done(status, [text] { return take(text); });
}

/// A call that fills a struct.
template <class T, class Call>
Outcome<T> filled(Call&& call) {
  T value = sized<T>();
  otr_status_t* const status = call(&value);
  return done(status, [&value] { return value; });
}

/// A call that writes one number.
template <class T, class Call>
Outcome<T> number(Call&& call) {
  T value{};
  otr_status_t* const status = call(&value);
  return done(status, [value] { return value; });
}

/// A handle that is given back to `Destroy` with its object, unless it was released or moved away.
template <otr_status_t* (*Destroy)(std::uint64_t)>
class Owned {
 public:
  Owned() noexcept = default;
  explicit Owned(std::uint64_t handle) noexcept : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, 0);
    }
    return *this;
  }
  ~Owned() { reset(); }

  [[nodiscard]] std::uint64_t get() const noexcept { return handle_; }
  [[nodiscard]] std::uint64_t release() noexcept { return std::exchange(handle_, 0); }

 private:
  void reset() noexcept {
    if (handle_ != 0) ignore(Destroy(std::exchange(handle_, 0)));
  }

  std::uint64_t handle_ = 0;
};

}  // namespace detail
}  // namespace OTR_CPP_FACE
}  // namespace otr

#endif  // OUTRIGGER_CPP_RESULT_HPP
