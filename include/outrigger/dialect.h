/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/dialect.h: one text for device code. What is written in these macros compiles as OpenCL C (1.2
 * and later), as CUDA C, and as plain C (C11, with GCC or Clang). A vendor whose device has another language
 * ports this header, and no kernel. dialect_functions.h has what is written in these macros itself, and needs no
 * port. docs/device-code.md is the guide.
 *
 * THE CONTRACT
 *
 *   D1  A text begins with its #defines, then includes this header and dialect_functions.h (or holds copies of them), then has
 *       functions (OTR_FUNCTION) and kernels (OTR_KERNEL). It includes nothing else, and uses no feature of
 *       one language alone: no recursion, no function pointers, no variable-length arrays, no variadic macros,
 *       no strings, and no name that one of them reserves, as `kernel`. Functions that are not OTR_FUNCTION are not called, but for those of these
 *       headers.
 *   D2  OTR_GROUP_SIZE is the number of work-items of a group, a power of two. A text may define it; the host
 *       launches groups of that size, in the first dimension. Where a device runs a group on one thread (a
 *       CPU), it is 1: barriers are nothing then, and what the items of a group fold is the value itself.
 *       In plain C it is always 1. So a text must give the same result for every size.
 *   D3  A kernel is `OTR_KERNEL(name)(OTR_ITEM parameters) { ... }`, without a comma behind OTR_ITEM. A function
 *       that asks where it is takes `OTR_ITEM` in the same place, and is called with `OTR_ITEM_ARGUMENT`.
 *   D4  OTR_LANE is the item's number in its group. OTR_GROUP_ID(d) and OTR_GROUP_COUNT(d) are those of groups, of
 *       the dimensions 0 to 2. OTR_LANE and groups are i32; they are read in kernels and in functions with OTR_ITEM.
 *   D5  A pointer says where it leads: OTR_GLOBAL to device memory, OTR_LOCAL to memory of the group, nothing to
 *       the item's own. OTR_LOCAL memory is declared by OTR_SHARED(type, name, count) at the beginning of a kernel.
 *   D6  OTR_BARRIER() is reached by all items of a group or by none. It orders OTR_LOCAL memory;
 *       OTR_BARRIER_GLOBAL() orders OTR_GLOBAL memory of the group besides.
 *   D7  Types in registers: f32, f64, i32, i64; u32 and u64 for bits. Types in memory have the names of element types: those, and
 *       f16, bf16, f8e4m3, f8e5m2, i8, i16, u8, u16, b8 (bool). OTR_MEMORY(T) is the C type that holds an element, and
 *       OTR_REGISTER(T) the one that it is computed in: f32 for all floating-point types but f64, i32 for small
 *       integers and bool, i64 for the other integers. OTR_LOAD(T, C, pointer, index) gives an element in the
 *       register type C, and OTR_STORE(T, C, pointer, index, value) takes one: it rounds to nearest even, wraps
 *       integers, and makes 1 of all but 0 for b8. OTR_CONVERT(from, to, value) converts between register types.
 *   D8  OTR_HAS_F64 is 1 where f64 is a type, OTR_HAS_ATOMIC64 where there are atomics on 64 bits, OTR_HAS_F16
 *       where the device computes in f16 (loads and stores of f16 work everywhere). A text checks before it uses these.
 *   D9  Functions have the register type in their names: otr_exp_f32, otr_max_i64. OTR_CALL(exp, T) is that function
 *       for a type that is a macro. For f32 and f64: exp exp2 expm1 log log1p log2 log10 sqrt rsqrt cbrt pow hypot, sin cos
 *       tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh, erf erfc lgamma tgamma, floor ceil trunc round (to
 *       even) round_away (halves away from 0), fmod, ieee_remainder (of the nearest quotient), ldexp (by an i32), frexp (which puts
 *       an i32 into the item's own memory, 0 for infinities and NaN), logb nextafter fdim copysign abs fma isnan. For all: max min
 *       (NaN wins), add sub mul neg (integers wrap), abs. For i32 and i64: div_trunc div_floor fmod remainder, which give 0 for
 *       a divisor of 0. For i32, i64, u32 and u64: mul_high (the high half of a product), and popcount and clz (leading zeros, all
 *       bits of 0), which give an i32.
 *   D10 Atomics take a pointer to OTR_GLOBAL memory, and give the value that was there before. otr_atomic_add_T, exchange, max
 *       and min (NaN wins), and cas (pointer, expected, value; it compares bits) are for f32, i32 and u32, and for f64, i64 and
 *       u64 where OTR_HAS_ATOMIC64; and, or and xor for the integers of these. add is also for types of less than 32 bits,
 *       with the register type, rounded at each addition, and cas for u8 and u16. otr_atomic_load_T and otr_atomic_store_T are for
 *       all types that cas has. The order of concurrent additions is not defined. An atomic orders no other memory by itself:
 *       OTR_RELEASE() in front of one lets those who see it see all that the item did before, and OTR_ACQUIRE() behind one lets the
 *       item see what was done before what it has seen. A group may wait in a loop for another one that has begun, and for no
 *       other; its items do not wait for each other so.
 *   D11 otr_group_sum_T, _max_T, _min_T, _prod_T(OTR_ITEM_ARGUMENT value, scratch) fold the values of all items of a
 *       group, in a fixed order, and give the result to every item. The scratch is OTR_SHARED(T, name,
 *       OTR_GROUP_SIZE), and may be used again at once. All items take part.
 *   D12 otr_philox(key, counter, words) is Philox 4x32-10 with the counter in the low half; otr_uniform_f32(seed,
 *       offset, position) is the number of that position in [0, 1), as docs/operators.md counts them.
 *   D13 OTR_INDEPENDENT stands in front of a `for` whose iterations do not depend on each other. Loads and stores in it may stand
 *       under conditions. OTR_REORDERED stands in front of one whose iterations only fold numbers into a result, by sums, products
 *       or integer extremes, in whatever order.
 *   D14 NaN and infinities are kept: a text is compiled without options that assume there are none. f32 division and
 *       square root are right to 1 unit in the last place, or rounded correctly.
 *   D15 OTR_UNROLL stands in front of a `for` of a constant number of iterations, to write them out. Where OTR_HAS_VECTORS is 1,
 *       OTR_VECTOR(T, N) is the type of N numbers in one value, for f32 and f64 and N of 4, 8 and 16. OTR_VECTOR_LOAD(T, N,
 *       pointer) and OTR_VECTOR_STORE(T, N, pointer, vector) take a pointer to T of the group or of the item, and
 *       OTR_VECTOR_FMA(T, N, x, y, z) is x y + z for a number and two vectors. OTR_FUSED in the place of OTR_FUNCTION lets the
 *       products and sums of the function be rounded once, as plain C has no other word for an instruction that does both.
 *   D16 With OTR_TASKS 1 in front of this header a kernel is a function that other code calls, once for each group: OTR_ITEM is the
 *       group's otr_place_t, as it always is in plain C. So one program runs the groups of several texts.
 *       OTR_ENTRY(name)(OTR_ENTRY_ITEM parameters) is the kernel that the host launches then. On a group size of 1 OTR_SHARED is an
 *       array of the item's own; in OpenCL C a text with OTR_SHARED has no such form for larger groups. OTR_FENCE() orders
 *       what an item reads and writes in OTR_GLOBAL memory in front of it and behind it, as the items of all groups see it.
 *   D17 Outrigger puts texts of one group size together by itself, if each parameter of a kernel stands in the text as a type
 *       and a name, whole lines with conditions apart. A text that has none of this is launched by itself.
 */
#ifndef OUTRIGGER_DIALECT_H
#define OUTRIGGER_DIALECT_H

/* Grows with every change of what is made of a text. Whoever keeps compiled code has it in the key. */
#define OTR_DIALECT_VERSION 8

#ifndef OTR_TASKS
#define OTR_TASKS 0
#endif

#define OTR_JOIN2_(a, b) a##b
#define OTR_JOIN2(a, b) OTR_JOIN2_(a, b)
#define OTR_JOIN3_(a, b, c) a##b##c
#define OTR_JOIN3(a, b, c) OTR_JOIN3_(a, b, c)

/* ---- The language -------------------------------------------------------------------------- */

/* The place of a group in its grid, where a caller gives it to a kernel as the first argument: in plain C and for tasks. */
#define OTR_PLACES \
  typedef struct otr_place { \
    i32 group[3]; \
    i32 count[3]; \
  } otr_place_t;

#if defined(__OPENCL_VERSION__)
#define OTR_OPENCL 1

#if defined(cl_khr_fp64) || defined(__opencl_c_fp64)
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define OTR_HAS_F64 1
#endif
#ifdef cl_khr_fp16
#define OTR_HAS_F16 1
#endif
#ifdef cl_khr_int64_base_atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#define OTR_HAS_ATOMIC64 1
#endif

typedef char i8;
typedef short i16;
typedef int i32;
typedef long i64;
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef float f32;
#if OTR_HAS_F64
typedef double f64;
#endif

#ifndef OTR_GROUP_SIZE
#define OTR_GROUP_SIZE 64
#endif
#define OTR_ENTRY(name) __kernel __attribute__((reqd_work_group_size(OTR_GROUP_SIZE, 1, 1))) void name
#define OTR_ENTRY_ITEM
#define OTR_FUNCTION static inline
#define OTR_GLOBAL __global
#if OTR_TASKS && OTR_GROUP_SIZE == 1
#define OTR_LOCAL
#define OTR_SHARED(type, name, count) type name[count]
#else
#define OTR_LOCAL __local
#define OTR_SHARED(type, name, count) __local type name[count]
#endif
#define OTR_CONSTANT __constant
#define OTR_RESTRICT restrict
#define OTR_LANE ((i32)get_local_id(0))
#if OTR_TASKS
OTR_PLACES
#define OTR_KERNEL(name) static void name
#define OTR_ITEM const otr_place_t *otr_place,
#define OTR_ITEM_ARGUMENT otr_place,
#define OTR_ITEM_ONLY const otr_place_t* otr_place
#define OTR_GROUP_ID(d) (otr_place->group[d])
#define OTR_GROUP_COUNT(d) (otr_place->count[d])
#else
#define OTR_KERNEL(name) OTR_ENTRY(name)
#define OTR_ITEM
#define OTR_ITEM_ARGUMENT
#define OTR_ITEM_ONLY void
#define OTR_GROUP_ID(d) ((i32)get_group_id(d))
#define OTR_GROUP_COUNT(d) ((i32)get_num_groups(d))
#endif
/* OpenCL C 1.2 has a fence of the group alone; a compiler made of Clang has the other one in all versions. */
#ifdef __has_builtin
#if __has_builtin(__c11_atomic_thread_fence)
#define OTR_FENCE() __c11_atomic_thread_fence(__ATOMIC_SEQ_CST)
#define OTR_ACQUIRE() __c11_atomic_thread_fence(__ATOMIC_ACQUIRE)
#define OTR_RELEASE() __c11_atomic_thread_fence(__ATOMIC_RELEASE)
#endif
#endif
#ifndef OTR_FENCE
#define OTR_FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define OTR_ACQUIRE() OTR_FENCE()
#define OTR_RELEASE() OTR_FENCE()
#endif
#if OTR_GROUP_SIZE == 1
#define OTR_BARRIER()
#define OTR_BARRIER_GLOBAL()
#else
#define OTR_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define OTR_BARRIER_GLOBAL() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#endif

OTR_FUNCTION u32 otr_bits_f32(f32 x) { return as_uint(x); }
OTR_FUNCTION f32 otr_of_bits_f32(u32 x) { return as_float(x); }
OTR_FUNCTION u32 otr_mul_high_u32(u32 a, u32 b) { return mul_hi(a, b); }
OTR_FUNCTION u64 otr_mul_high_u64(u64 a, u64 b) { return mul_hi(a, b); }
OTR_FUNCTION i32 otr_popcount_u32(u32 x) { return (i32)popcount(x); }
OTR_FUNCTION i32 otr_popcount_u64(u64 x) { return (i32)popcount(x); }
OTR_FUNCTION i32 otr_clz_u32(u32 x) { return (i32)clz(x); }
OTR_FUNCTION i32 otr_clz_u64(u64 x) { return (i32)clz(x); }
OTR_FUNCTION f32 otr_of_f16(u16 bits) {
  u16 here = bits;
  return vload_half(0, (const half*)&here);
}
OTR_FUNCTION u16 otr_to_f16(f32 x) {
  u16 here;
  vstore_half_rte(x, 0, (half*)&here);
  return here;
}

#define OTR_ATOMIC_ACCESS(T) \
  OTR_FUNCTION T otr_atomic_load_##T(OTR_GLOBAL const T* p) { return *(volatile OTR_GLOBAL const T*)p; } \
  OTR_FUNCTION void otr_atomic_store_##T(OTR_GLOBAL T* p, T v) { *(volatile OTR_GLOBAL T*)p = v; }
#define OTR_ATOMIC(name, T, opencl) \
  OTR_FUNCTION T name(OTR_GLOBAL T* p, T v) { return opencl((volatile OTR_GLOBAL T*)p, v); }
OTR_ATOMIC(otr_atomic_add_u32, u32, atomic_add)
OTR_ATOMIC(otr_atomic_exchange_u32, u32, atomic_xchg)
OTR_FUNCTION u32 otr_atomic_cas_u32(OTR_GLOBAL u32* p, u32 expected, u32 v) {
  return atomic_cmpxchg((volatile OTR_GLOBAL u32*)p, expected, v);
}
#if OTR_HAS_ATOMIC64
OTR_ATOMIC(otr_atomic_add_u64, u64, atom_add)
OTR_ATOMIC(otr_atomic_exchange_u64, u64, atom_xchg)
OTR_FUNCTION u64 otr_atomic_cas_u64(OTR_GLOBAL u64* p, u64 expected, u64 v) {
  return atom_cmpxchg((volatile OTR_GLOBAL u64*)p, expected, v);
}
#endif
#define OTR_ATOMIC32(name, T, opencl, cuda, of, step) OTR_ATOMIC(name, T, opencl)
#if OTR_HAS_F64
OTR_FUNCTION u64 otr_bits_f64(f64 x) { return as_ulong(x); }
OTR_FUNCTION f64 otr_of_bits_f64(u64 x) { return as_double(x); }
#endif

#define OTR_HAS_VECTORS 1
#define OTR_VECTOR(T, N) OTR_JOIN3(T, x, N)
#define OTR_VECTOR_LOAD(T, N, p) OTR_JOIN2(vload, N)(0, p)
#define OTR_VECTOR_STORE(T, N, p, v) OTR_JOIN2(vstore, N)(v, 0, p)
#define OTR_VECTOR_FMA(T, N, x, y, z) fma((OTR_VECTOR(T, N))(x), y, z)
#define OTR_FUSED OTR_FUNCTION
#define OTR_VECTORS(T, c) typedef c##4 T##x4; typedef c##8 T##x8; typedef c##16 T##x16;
OTR_VECTORS(f32, float)
#if OTR_HAS_F64
OTR_VECTORS(f64, double)
#endif

#define OTR_MATH_NAME(T, opencl, c) opencl

#elif defined(__CUDACC__) || defined(__HIPCC__)
#define OTR_CUDA 1

#define OTR_HAS_F64 1
#define OTR_HAS_F16 1
#define OTR_HAS_ATOMIC64 1

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#ifndef OTR_GROUP_SIZE
#define OTR_GROUP_SIZE 64
#endif
#define OTR_ENTRY(name) extern "C" __global__ void __launch_bounds__(OTR_GROUP_SIZE) name
#define OTR_ENTRY_ITEM
#define OTR_FUNCTION static __device__ inline
#define OTR_FUSED OTR_FUNCTION
#define OTR_GLOBAL
#define OTR_LOCAL
#define OTR_CONSTANT static __device__ const
#define OTR_RESTRICT __restrict__
#if OTR_TASKS && OTR_GROUP_SIZE == 1
#define OTR_SHARED(type, name, count) type name[count]
#else
#define OTR_SHARED(type, name, count) __shared__ type name[count]
#endif
#define OTR_LANE ((i32)threadIdx.x)
#if OTR_TASKS
OTR_PLACES
#define OTR_KERNEL(name) static __device__ void name
#define OTR_ITEM const otr_place_t *otr_place,
#define OTR_ITEM_ARGUMENT otr_place,
#define OTR_ITEM_ONLY const otr_place_t* otr_place
#define OTR_GROUP_ID(d) (otr_place->group[d])
#define OTR_GROUP_COUNT(d) (otr_place->count[d])
#else
#define OTR_KERNEL(name) OTR_ENTRY(name)
#define OTR_ITEM
#define OTR_ITEM_ARGUMENT
#define OTR_ITEM_ONLY
#define OTR_GROUP_ID(d) ((i32)((d) == 0 ? blockIdx.x : (d) == 1 ? blockIdx.y : blockIdx.z))
#define OTR_GROUP_COUNT(d) ((i32)((d) == 0 ? gridDim.x : (d) == 1 ? gridDim.y : gridDim.z))
#endif
#define OTR_FENCE() __threadfence()
#define OTR_ACQUIRE() __threadfence()
#define OTR_RELEASE() __threadfence()
#if OTR_GROUP_SIZE == 1
#define OTR_BARRIER()
#define OTR_BARRIER_GLOBAL()
#else
#define OTR_BARRIER() __syncthreads()
#define OTR_BARRIER_GLOBAL() __syncthreads()
#endif

OTR_FUNCTION u32 otr_bits_f32(f32 x) { return __float_as_uint(x); }
OTR_FUNCTION f32 otr_of_bits_f32(u32 x) { return __uint_as_float(x); }
OTR_FUNCTION u64 otr_bits_f64(f64 x) { return (u64)__double_as_longlong(x); }
OTR_FUNCTION f64 otr_of_bits_f64(u64 x) { return __longlong_as_double((i64)x); }
OTR_FUNCTION u32 otr_mul_high_u32(u32 a, u32 b) { return __umulhi(a, b); }
OTR_FUNCTION u64 otr_mul_high_u64(u64 a, u64 b) { return __umul64hi(a, b); }
OTR_FUNCTION i32 otr_popcount_u32(u32 x) { return __popc(x); }
OTR_FUNCTION i32 otr_popcount_u64(u64 x) { return __popcll(x); }
OTR_FUNCTION i32 otr_clz_u32(u32 x) { return __clz((i32)x); }
OTR_FUNCTION i32 otr_clz_u64(u64 x) { return __clzll((i64)x); }
#if defined(__HIPCC__)
OTR_FUNCTION f32 otr_of_f16(u16 bits) { return (f32) * (const _Float16*)&bits; }
OTR_FUNCTION u16 otr_to_f16(f32 x) {
  _Float16 here = (_Float16)x;
  return *(const u16*)&here;
}
#else
OTR_FUNCTION f32 otr_of_f16(u16 bits) {
  f32 x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
OTR_FUNCTION u16 otr_to_f16(f32 x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif

#define OTR_ATOMIC_ACCESS(T) \
  OTR_FUNCTION T otr_atomic_load_##T(const T* p) { return *(const volatile T*)p; } \
  OTR_FUNCTION void otr_atomic_store_##T(T* p, T v) { *(volatile T*)p = v; }
#define OTR_ATOMIC(name, T, cuda) \
  OTR_FUNCTION T name(T* p, T v) { return cuda(p, v); }
OTR_ATOMIC(otr_atomic_add_u32, u32, atomicAdd)
OTR_ATOMIC(otr_atomic_add_u64, u64, atomicAdd)
OTR_ATOMIC(otr_atomic_exchange_u32, u32, atomicExch)
OTR_ATOMIC(otr_atomic_exchange_u64, u64, atomicExch)
OTR_FUNCTION u32 otr_atomic_cas_u32(u32* p, u32 expected, u32 v) { return atomicCAS(p, expected, v); }
OTR_FUNCTION u64 otr_atomic_cas_u64(u64* p, u64 expected, u64 v) { return atomicCAS(p, expected, v); }
#define OTR_ATOMIC32(name, T, opencl, cuda, of, step) OTR_ATOMIC(name, T, cuda)
#define OTR_ATOMIC64(name, T, cuda, of, step) OTR_ATOMIC(name, T, cuda)

#else
#define OTR_C 1

#include <math.h>
#include <stdint.h>
#include <string.h>

/* A mask of a vector is -1 where it holds. The optimization along dominators of GCC 12 takes it for a truth, which is 1: a loop
 * whose loads or stores stand under a condition then loads zeros, or stores what it must not. Masks of AVX-512 have one bit, which
 * is both. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX__) && !defined(__AVX512VL__)
#pragma GCC optimize("no-tree-dominator-opts")
#endif

#define OTR_HAS_F64 1
#define OTR_HAS_F16 0
#define OTR_HAS_ATOMIC64 1

typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;

OTR_PLACES

#undef OTR_GROUP_SIZE
#define OTR_GROUP_SIZE 1
#define OTR_KERNEL(name) void name
#define OTR_ENTRY(name) OTR_KERNEL(name)
#define OTR_ENTRY_ITEM OTR_ITEM
#define OTR_FUNCTION static inline __attribute__((unused))
#define OTR_GLOBAL
#define OTR_LOCAL
#define OTR_CONSTANT static const
#define OTR_RESTRICT __restrict
#define OTR_SHARED(type, name, count) type name[count]
#define OTR_ITEM const otr_place_t *otr_place,
#define OTR_ITEM_ARGUMENT otr_place,
#define OTR_ITEM_ONLY const otr_place_t* otr_place
#define OTR_LANE ((void)otr_place, 0)
#define OTR_GROUP_ID(d) (otr_place->group[d])
#define OTR_GROUP_COUNT(d) (otr_place->count[d])
#define OTR_BARRIER()
#define OTR_BARRIER_GLOBAL()
#define OTR_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define OTR_ACQUIRE() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define OTR_RELEASE() __atomic_thread_fence(__ATOMIC_RELEASE)

#define OTR_HAS_VECTORS 1
#define OTR_VECTOR(T, N) OTR_JOIN3(T, x, N)
#define OTR_VECTOR_LOAD(T, N, p) OTR_JOIN2(otr_vector_load_, OTR_VECTOR(T, N))(p)
#define OTR_VECTOR_STORE(T, N, p, v) OTR_JOIN2(otr_vector_store_, OTR_VECTOR(T, N))(p, v)
#define OTR_VECTOR_FMA(T, N, x, y, z) ((x) * (y) + (z))
#if defined(__GNUC__) && !defined(__clang__)
/* Such a function is not part of another one, which has other options. */
#define OTR_FUSED static __attribute__((unused, noinline, optimize("fp-contract=fast")))
#else
#define OTR_FUSED OTR_FUNCTION
#endif
#define OTR_VECTORS(T, N) \
  typedef T T##x##N __attribute__((vector_size(N * sizeof(T)))); \
  OTR_FUNCTION T##x##N otr_vector_load_##T##x##N(const T* p) { T##x##N v; memcpy(&v, p, sizeof v); return v; } \
  OTR_FUNCTION void otr_vector_store_##T##x##N(T* p, T##x##N v) { memcpy(p, &v, sizeof v); }
OTR_VECTORS(f32, 4) OTR_VECTORS(f32, 8) OTR_VECTORS(f32, 16)
OTR_VECTORS(f64, 4) OTR_VECTORS(f64, 8) OTR_VECTORS(f64, 16)

OTR_FUNCTION u32 otr_bits_f32(f32 x) {
  u32 bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
OTR_FUNCTION f32 otr_of_bits_f32(u32 bits) {
  f32 x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
OTR_FUNCTION u64 otr_bits_f64(f64 x) {
  u64 bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
OTR_FUNCTION f64 otr_of_bits_f64(u64 bits) {
  f64 x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
OTR_FUNCTION u32 otr_mul_high_u32(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
__extension__ typedef unsigned __int128 otr_u128;
OTR_FUNCTION u64 otr_mul_high_u64(u64 a, u64 b) { return (u64)(((otr_u128)a * b) >> 64); }
OTR_FUNCTION i32 otr_popcount_u32(u32 x) { return __builtin_popcount(x); }
OTR_FUNCTION i32 otr_popcount_u64(u64 x) { return __builtin_popcountll(x); }
OTR_FUNCTION i32 otr_clz_u32(u32 x) { return x ? __builtin_clz(x) : 32; }
OTR_FUNCTION i32 otr_clz_u64(u64 x) { return x ? __builtin_clzll(x) : 64; }
OTR_FUNCTION f32 otr_of_f16(u16 bits) {
  u32 sign = ((u32)bits & 0x8000u) << 16, rest = (u32)bits & 0x7fffu;
  /* The exponent's bias is changed by a multiplication, which is right for subnormal numbers too. */
  f32 x = otr_of_bits_f32(rest << 13) * otr_of_bits_f32(239u << 23);
  u32 value = rest >= 0x7c00u ? (rest << 13) | 0x7f800000u : otr_bits_f32(x);
  return otr_of_bits_f32(sign | value);
}
OTR_FUNCTION u16 otr_to_f16(f32 x) {
  u32 bits = otr_bits_f32(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  /* Below 2^-14 an addition to 2^-1 rounds at the last place of a subnormal number. */
  u32 small = otr_bits_f32(otr_of_bits_f32(rest) + 0.5f) - 0x3f000000u;
  u32 usual = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  u32 value = rest < 0x38800000u ? small : usual;
  value = rest >= 0x477ff000u ? 0x7c00u : value;
  return (u16)(sign | (rest > 0x7f800000u ? 0x7e00u : value));
}

#define OTR_ATOMIC_ACCESS(T) \
  OTR_FUNCTION T otr_atomic_load_##T(const T* p) { \
    T v; \
    __atomic_load(p, &v, __ATOMIC_RELAXED); \
    return v; \
  } \
  OTR_FUNCTION void otr_atomic_store_##T(T* p, T v) { __atomic_store(p, &v, __ATOMIC_RELAXED); }
#define OTR_ATOMIC_CAS(T) \
  OTR_FUNCTION T otr_atomic_cas_##T(T* p, T expected, T v) { \
    __atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return expected; \
  }
#define OTR_ATOMICS(T) \
  OTR_FUNCTION T otr_atomic_add_##T(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); } \
  OTR_FUNCTION T otr_atomic_exchange_##T(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); } \
  OTR_ATOMIC_CAS(T)
OTR_ATOMICS(u32)
OTR_ATOMICS(u64)
#define OTR_NARROW_CAS(T) OTR_ATOMIC_CAS(T)

#endif

/* What is not there is 0. */
#ifndef OTR_HAS_F64
#define OTR_HAS_F64 0
#endif
#ifndef OTR_HAS_VECTORS
#define OTR_HAS_VECTORS 0
#endif
#ifndef OTR_HAS_F16
#define OTR_HAS_F16 0
#endif
#ifndef OTR_HAS_ATOMIC64
#define OTR_HAS_ATOMIC64 0
#endif
#ifndef OTR_OPENCL
#define OTR_OPENCL 0
#endif
#ifndef OTR_CUDA
#define OTR_CUDA 0
#endif
#ifndef OTR_C
#define OTR_C 0
#endif

/* In front of a loop whose iterations touch different elements, or the same one in place: a compiler need not prove it. */
#if defined(__clang__) && !OTR_CUDA
/* A loop that the compiler leaves as it is is no mistake of the text. */
#pragma clang diagnostic ignored "-Wpass-failed"
#define OTR_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define OTR_UNROLL _Pragma("unroll")
#elif defined(__GNUC__) && OTR_C
#define OTR_INDEPENDENT _Pragma("GCC ivdep")
#define OTR_UNROLL _Pragma("GCC unroll 16")
#else
#define OTR_INDEPENDENT
#define OTR_UNROLL _Pragma("unroll")
#endif

/* In front of a loop that folds numbers: a compiler may make several results of one, and join them behind the loop. Where
 * a group has more items, these are the several results. Clang takes the pragma as leave to change the order of sums. */
#if defined(__clang__) && OTR_GROUP_SIZE == 1
#define OTR_REORDERED _Pragma("clang loop vectorize(assume_safety) interleave_count(8)")
#else
#define OTR_REORDERED
#endif

#define OTR_INFINITY_F32 otr_of_bits_f32(0x7f800000u)
#define OTR_NAN_F32 otr_of_bits_f32(0x7fc00000u)

/* A function with its type, where the type may be a macro. The name may not: OpenCL C may have macros of such names. */
#define OTR_CALL(name, T) OTR_JOIN2(otr_##name##_, T)

/* ---- Numbers ------------------------------------------------------------------------------- */

/* A function of numbers: its name here, in OpenCL C, and in C. */
#ifndef OTR_MATH_NAME
#define OTR_MATH_NAME(T, opencl, c) OTR_C_NAME_##T(c)
#define OTR_C_NAME_f32(c) c##f
#define OTR_C_NAME_f64(c) c
#endif
#define OTR_MATH1(T, name, opencl, c) \
  OTR_FUNCTION T otr_##name##_##T(T x) { return OTR_MATH_NAME(T, opencl, c)(x); }
#define OTR_MATH2(T, name, opencl, c) \
  OTR_FUNCTION T otr_##name##_##T(T x, T y) { return OTR_MATH_NAME(T, opencl, c)(x, y); }
#define OTR_MATH3(T, name, opencl, c) \
  OTR_FUNCTION T otr_##name##_##T(T x, T y, T z) { return OTR_MATH_NAME(T, opencl, c)(x, y, z); }

#define OTR_MATHS(T) \
  OTR_MATH1(T, expm1, expm1, expm1) \
  OTR_MATH1(T, log, log, log) \
  OTR_MATH1(T, log1p, log1p, log1p) \
  OTR_MATH1(T, log2, log2, log2) \
  OTR_MATH1(T, log10, log10, log10) \
  OTR_MATH1(T, sqrt, sqrt, sqrt) \
  OTR_MATH1(T, cbrt, cbrt, cbrt) \
  OTR_MATH1(T, sin, sin, sin) \
  OTR_MATH1(T, cos, cos, cos) \
  OTR_MATH1(T, tan, tan, tan) \
  OTR_MATH1(T, asin, asin, asin) \
  OTR_MATH1(T, acos, acos, acos) \
  OTR_MATH1(T, atan, atan, atan) \
  OTR_MATH1(T, sinh, sinh, sinh) \
  OTR_MATH1(T, cosh, cosh, cosh) \
  OTR_MATH1(T, tanh, tanh, tanh) \
  OTR_MATH1(T, asinh, asinh, asinh) \
  OTR_MATH1(T, acosh, acosh, acosh) \
  OTR_MATH1(T, atanh, atanh, atanh) \
  OTR_MATH1(T, erfc, erfc, erfc) \
  OTR_MATH1(T, lgamma, lgamma, lgamma) \
  OTR_MATH1(T, tgamma, tgamma, tgamma) \
  OTR_MATH1(T, floor, floor, floor) \
  OTR_MATH1(T, ceil, ceil, ceil) \
  OTR_MATH1(T, trunc, trunc, trunc) \
  OTR_MATH1(T, round, rint, rint) \
  OTR_MATH1(T, round_away, round, round) \
  OTR_MATH1(T, logb, logb, logb) \
  OTR_MATH1(T, abs, fabs, fabs) \
  OTR_MATH2(T, pow, pow, pow) \
  OTR_MATH2(T, hypot, hypot, hypot) \
  OTR_MATH2(T, atan2, atan2, atan2) \
  OTR_MATH2(T, fmod, fmod, fmod) \
  OTR_MATH2(T, ieee_remainder, remainder, remainder) \
  OTR_MATH2(T, fdim, fdim, fdim) \
  OTR_MATH2(T, nextafter, nextafter, nextafter) \
  OTR_MATH2(T, copysign, copysign, copysign) \
  OTR_FUNCTION T otr_ldexp_##T(T x, i32 power) { return OTR_MATH_NAME(T, ldexp, ldexp)(x, power); } \
  OTR_FUNCTION T otr_frexp_##T(T x, i32* power) { \
    T part = OTR_MATH_NAME(T, frexp, frexp)(x, power); \
    if (x - x != 0) *power = 0; \
    return part; \
  } \
  OTR_FUNCTION T otr_rsqrt_##T(T x) { return (T)1 / otr_sqrt_##T(x); } \
  OTR_FUNCTION i32 otr_isnan_##T(T x) { return x != x; } \
  OTR_FUNCTION T otr_add_##T(T x, T y) { return x + y; } \
  OTR_FUNCTION T otr_sub_##T(T x, T y) { return x - y; } \
  OTR_FUNCTION T otr_mul_##T(T x, T y) { return x * y; } \
  OTR_FUNCTION T otr_neg_##T(T x) { return -x; } \
  OTR_FUNCTION T otr_remainder_##T(T x, T y) { \
    T rest = otr_fmod_##T(x, y); \
    return rest != 0 && ((rest < 0) != (y < 0)) ? rest + y : rest; \
  } \
  OTR_FUNCTION T otr_div_trunc_##T(T x, T y) { return otr_trunc_##T(x / y); } \
  OTR_FUNCTION T otr_div_floor_##T(T x, T y) { \
    if (y == 0) return x / y; \
    T rest = otr_fmod_##T(x, y), quotient = (x - rest) / y; \
    if (rest != 0 && ((y < 0) != (rest < 0))) quotient -= 1; \
    if (quotient == 0) return otr_copysign_##T(0, x / y); \
    T whole = otr_floor_##T(quotient); \
    return quotient - whole > (T)0.5 ? whole + 1 : whole; \
  }
OTR_MATHS(f32)
#if OTR_HAS_F64
OTR_MATHS(f64)
#endif

/* In plain C an fma without hardware is a slow function, and in OpenCL C for a CPU it is one that no compiler makes vectors
 * of, other than a product and a sum that it may contract: two roundings are as good for what uses it. */
#if (OTR_C && !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)) || (OTR_OPENCL && OTR_GROUP_SIZE == 1)
#define OTR_FMA(T) OTR_FUNCTION T otr_fma_##T(T x, T y, T z) { return x * y + z; }
#else
#define OTR_FMA(T) OTR_MATH3(T, fma, fma, fma)
#endif
OTR_FMA(f32)

#if OTR_HAS_F64
OTR_FMA(f64)
#endif

/* Conversions between register types. Floating-point numbers become integers by cutting; one that does not fit becomes
 * the nearest bound, and NaN 0. */
#define OTR_CONVERSION(from, to) \
  OTR_FUNCTION to otr_convert_##from##_##to(from x) { return (to)x; }
#define OTR_CUT(from, to, low, high, beyond) \
  OTR_FUNCTION to otr_convert_##from##_##to(from x) { \
    return x != x ? 0 : x >= (from)beyond ? high : x < -(from)beyond ? low : (to)x; \
  }
OTR_CONVERSION(f32, f32)
OTR_CUT(f32, i32, (-0x7fffffff - 1), 0x7fffffff, 2147483648.0f)
OTR_CUT(f32, i64, (-(i64)0x7fffffffffffffff - 1), (i64)0x7fffffffffffffff, 9223372036854775808.0f)
OTR_CONVERSION(i32, f32)
OTR_CONVERSION(i32, i32)
OTR_CONVERSION(i32, i64)
OTR_CONVERSION(i64, f32)
OTR_CONVERSION(i64, i32)
OTR_CONVERSION(i64, i64)
#if OTR_HAS_F64
OTR_CONVERSION(f64, f32)
OTR_CONVERSION(f64, f64)
OTR_CUT(f64, i32, (-0x7fffffff - 1), 0x7fffffff, 2147483648.0)
OTR_CUT(f64, i64, (-(i64)0x7fffffffffffffff - 1), (i64)0x7fffffffffffffff, 9223372036854775808.0)
OTR_CONVERSION(f32, f64)
OTR_CONVERSION(i32, f64)
OTR_CONVERSION(i64, f64)
#endif
#define OTR_CONVERT(from, to, x) OTR_JOIN3(OTR_JOIN2(otr_convert_, from), _, to)(x)

/* ---- Element types ------------------------------------------------------------------------- */

OTR_FUNCTION f32 otr_of_bf16(u16 bits) { return otr_of_bits_f32((u32)bits << 16); }
OTR_FUNCTION u16 otr_to_bf16(f32 x) {
  u32 bits = otr_bits_f32(x);
  u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (u16)(x != x ? (bits >> 16) | 0x40u : rounded);
}
OTR_FUNCTION f32 otr_of_f8e4m3(u8 bits) {
  u32 sign = ((u32)bits & 0x80u) << 24, rest = (u32)bits & 0x7fu;
  u32 usual = (rest << 20) + (120u << 23);
  u32 small = otr_bits_f32((f32)(i32)rest * 0.001953125f);
  u32 value = rest == 0x7fu ? 0x7fc00000u : rest < 8u ? small : usual;
  return otr_of_bits_f32(sign | value);
}
OTR_FUNCTION u8 otr_to_f8e4m3(f32 x) {
  u32 bits = otr_bits_f32(x), sign = (bits >> 24) & 0x80u, rest = bits & 0x7fffffffu;
  u32 small = otr_bits_f32(otr_of_bits_f32(rest) + 16384.0f) - otr_bits_f32(16384.0f);
  u32 usual = (rest - (120u << 23) + 0x7ffffu + ((rest >> 20) & 1u)) >> 20;
  u32 value = rest >= 0x43f00000u ? 0x7fu : rest < (121u << 23) ? small : usual;
  return (u8)(sign | value);
}
OTR_FUNCTION f32 otr_of_f8e5m2(u8 bits) { return otr_of_f16((u16)((u32)bits << 8)); }
OTR_FUNCTION u8 otr_to_f8e5m2(f32 x) {
  u32 bits = otr_bits_f32(x), sign = (bits >> 24) & 0x80u, rest = bits & 0x7fffffffu;
  u32 small = otr_bits_f32(otr_of_bits_f32(rest) + 128.0f) - otr_bits_f32(128.0f);
  u32 usual = (rest - (112u << 23) + 0xfffffu + ((rest >> 21) & 1u)) >> 21;
  u32 value = rest < (113u << 23) ? small : usual;
  value = rest >= 0x47700000u ? 0x7cu : value;
  return (u8)(sign | (rest > 0x7f800000u ? 0x7fu : value));
}
/* A number of 4 bits in the low (0) or high (1) half of a byte. */
OTR_FUNCTION i32 otr_of_i4(u8 pair, i32 half_) { return (i32)((((u32)pair >> (4 * half_)) & 15u) ^ 8u) - 8; }
OTR_FUNCTION i32 otr_of_u4(u8 pair, i32 half_) { return (i32)(((u32)pair >> (4 * half_)) & 15u); }

/* For an element type: its C type, its register type, and how one becomes the other; then the loads and stores for a
 * text that computes in another register type. */
#define OTR_ELEMENT(T, memory, register_, load, store) \
  typedef memory otr_memory_##T; \
  typedef register_ otr_register_##T; \
  OTR_FUNCTION register_ otr_get_##T(OTR_GLOBAL const memory* p, i64 at) { return (register_)load(p[at]); } \
  OTR_FUNCTION void otr_put_##T(OTR_GLOBAL memory* p, i64 at, register_ x) { p[at] = (memory)store(x); }
#define OTR_ACCESS(T, register_, C) \
  OTR_FUNCTION C otr_load_##T##_##C(OTR_GLOBAL const otr_memory_##T* p, i64 at) { \
    return otr_convert_##register_##_##C(otr_get_##T(p, at)); \
  } \
  OTR_FUNCTION void otr_store_##T##_##C(OTR_GLOBAL otr_memory_##T* p, i64 at, C x) { \
    otr_put_##T(p, at, otr_convert_##C##_##register_(x)); \
  }
#define OTR_TRUTH_ACCESS(C) \
  OTR_FUNCTION C otr_load_b8_##C(OTR_GLOBAL const u8* p, i64 at) { return (C)(p[at] != 0); } \
  OTR_FUNCTION void otr_store_b8_##C(OTR_GLOBAL u8* p, i64 at, C x) { p[at] = (u8)(x != 0); }
#if OTR_HAS_F64
#define OTR_ACCESSES(T, register_) \
  OTR_ACCESS(T, register_, f32) \
  OTR_ACCESS(T, register_, f64) \
  OTR_ACCESS(T, register_, i32) \
  OTR_ACCESS(T, register_, i64)
#else
#define OTR_ACCESSES(T, register_) \
  OTR_ACCESS(T, register_, f32) \
  OTR_ACCESS(T, register_, i32) \
  OTR_ACCESS(T, register_, i64)
#endif

#define OTR_SAME(x) (x)
OTR_ELEMENT(f32, f32, f32, OTR_SAME, OTR_SAME)
OTR_ELEMENT(bf16, u16, f32, otr_of_bf16, otr_to_bf16)
OTR_ELEMENT(f8e4m3, u8, f32, otr_of_f8e4m3, otr_to_f8e4m3)
OTR_ELEMENT(f8e5m2, u8, f32, otr_of_f8e5m2, otr_to_f8e5m2)
OTR_ELEMENT(i8, i8, i32, OTR_SAME, OTR_SAME)
OTR_ELEMENT(i16, i16, i32, OTR_SAME, OTR_SAME)
OTR_ELEMENT(i32, i32, i32, OTR_SAME, OTR_SAME)
OTR_ELEMENT(i64, i64, i64, OTR_SAME, OTR_SAME)
OTR_ELEMENT(u8, u8, i32, OTR_SAME, OTR_SAME)
OTR_ELEMENT(u16, u16, i32, OTR_SAME, OTR_SAME)
OTR_ELEMENT(u32, u32, i64, OTR_SAME, OTR_SAME)
OTR_ELEMENT(u64, u64, i64, OTR_SAME, OTR_SAME)
#if OTR_OPENCL
/* The language has these for memory, and hardware does them in one instruction. */
typedef u16 otr_memory_f16;
typedef f32 otr_register_f16;
OTR_FUNCTION f32 otr_get_f16(OTR_GLOBAL const u16* p, i64 at) {
  return vload_half(0, (OTR_GLOBAL const half*)(p + at));
}
OTR_FUNCTION void otr_put_f16(OTR_GLOBAL u16* p, i64 at, f32 x) { vstore_half_rte(x, 0, (OTR_GLOBAL half*)(p + at)); }
#else
OTR_ELEMENT(f16, u16, f32, otr_of_f16, otr_to_f16)
#endif
OTR_ACCESSES(f32, f32)
OTR_ACCESSES(f16, f32)
OTR_ACCESSES(bf16, f32)
OTR_ACCESSES(f8e4m3, f32)
OTR_ACCESSES(f8e5m2, f32)
OTR_ACCESSES(i8, i32)
OTR_ACCESSES(i16, i32)
OTR_ACCESSES(i32, i32)
OTR_ACCESSES(i64, i64)
OTR_ACCESSES(u8, i32)
OTR_ACCESSES(u16, i32)
OTR_ACCESSES(u32, i64)
OTR_ACCESSES(u64, i64)
typedef u8 otr_memory_b8;
typedef i32 otr_register_b8;
OTR_TRUTH_ACCESS(f32)
OTR_TRUTH_ACCESS(i32)
OTR_TRUTH_ACCESS(i64)
#if OTR_HAS_F64
OTR_ELEMENT(f64, f64, f64, OTR_SAME, OTR_SAME)
OTR_ACCESSES(f64, f64)
OTR_TRUTH_ACCESS(f64)
#endif

#define OTR_MEMORY(T) OTR_JOIN2(otr_memory_, T)
#define OTR_REGISTER(T) OTR_JOIN2(otr_register_, T)
#define OTR_LOAD(T, C, p, at) OTR_JOIN3(OTR_JOIN2(otr_load_, T), _, C)(p, at)
#define OTR_STORE(T, C, p, at, x) OTR_JOIN3(OTR_JOIN2(otr_store_, T), _, C)(p, at, x)

#endif /* OUTRIGGER_DIALECT_H */
