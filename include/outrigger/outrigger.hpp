// SPDX-License-Identifier: MIT OR Apache-2.0
//
// outrigger/outrigger.hpp: the host contract for C++17 and newer, for programs that are built against an installed
// library. A program that Cargo builds together with Rust has the bridge of the package `outrigger` (src/bridge.rs).
// Header only, over the functions of outrigger/outrigger.h, whose rules H1 to H30 hold here as well.
//
//   const auto stream = otr::Stream::create(otr::Device(0));
//   const auto x = otr::Buffer::allocate(otr::Device(0), 4096, stream);
//   stream.call(otr::Operator::find("relu"), {x.tensor(otr::DType::f32, {32, 32})}, ...);
//
// Ownership  Streams, events, pools, buffers, graphs, executable graphs, modules, kernels and communicators are given back with
//            their objects, which can be moved and not copied. Destroying never waits, and never fails loudly.
// Failures   Every call that can fail returns an Outcome: the value itself, and an otr::Error is thrown;
//            or, where OTR_NO_EXCEPTIONS is defined before the include or exceptions are off, an
//            otr::Result, as std::expected of C++23. What is marked noexcept cannot fail.
// Threads    As in C: objects may be used from any thread. Moving or destroying one while another
//            thread uses it is the host's fault.
// In C       What has no class here is called as in C, with the `id()` of the objects; `sized` makes the structs
//            and `take` the strings of such calls.

#ifndef OUTRIGGER_HPP
#define OUTRIGGER_HPP

#if __cplusplus < 201703L
#error "outrigger.hpp needs C++17: compile with -std=c++17 or newer, or include outrigger.h"
#endif

#include <outrigger/cpp/communicator.hpp>
#include <outrigger/cpp/core.hpp>
#include <outrigger/cpp/graph.hpp>
#include <outrigger/cpp/module.hpp>
#include <outrigger/cpp/result.hpp>

#endif  // OUTRIGGER_HPP
