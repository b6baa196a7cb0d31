/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/base.h: what both contracts share, the codes and the element types.
 * Numbers are part of the ABI: they are never changed and never used again.
 */
#ifndef OUTRIGGER_BASE_H
#define OUTRIGGER_BASE_H

#include <stddef.h>
#include <stdint.h>

/* ---- Codes ---------------------------------------------------------------------------------
 * 0 is success, OTR_NOT_READY is an answer, all others are failures. An unknown code is a failure.
 */
typedef int32_t otr_code_t;

#define OTR_OK 0
#define OTR_NOT_READY 1               /* a query: the work has not finished */
#define OTR_ERR_INVALID_ARGUMENT 2    /* an argument is out of its documented range */
#define OTR_ERR_INVALID_HANDLE 3      /* a handle is NULL, stale, or of another runtime */
#define OTR_ERR_INVALID_DEVICE 4      /* there is no device with this index */
#define OTR_ERR_OUT_OF_MEMORY 5       /* device memory is exhausted */
#define OTR_ERR_OUT_OF_HOST_MEMORY 6  /* host memory or another host resource is exhausted */
#define OTR_ERR_UNSUPPORTED 7         /* the feature is absent; nothing was done */
#define OTR_ERR_NOT_FOUND 8           /* a named thing does not exist */
#define OTR_ERR_VERSION 9             /* the two sides speak different major versions */
#define OTR_ERR_DEVICE_LOST 10        /* the device no longer answers; only closing it is left */
#define OTR_ERR_EXECUTION 11          /* submitted work failed */
#define OTR_ERR_OUT_OF_RANGE 12       /* submitted work met an index or address outside its bounds */
#define OTR_ERR_WOULD_DEADLOCK 13     /* the call would wait for work that waits for the caller */
#define OTR_ERR_BUSY 14               /* the object is in use in a way that forbids the call */
#define OTR_ERR_FORKED 15             /* the runtime was made in the parent of this process */
#define OTR_ERR_CANCELLED 16          /* work was given up: its queue was destroyed or had failed, its communicator aborted */
#define OTR_ERR_LOAD 17               /* a driver could not be loaded */
#define OTR_ERR_INTERNAL 18           /* a defect of the side that reports it */
#define OTR_ERR_CAPTURE 19            /* not possible while a stream captures, or the capture failed */
#define OTR_ERR_PEER_LOST 20          /* another rank of a communicator has ended, failed, or not come in time */

/* ---- Element types ------------------------------------------------------------------------- */
typedef uint32_t otr_dtype_t;

#define OTR_DTYPE_INVALID 0
#define OTR_DTYPE_BOOL 1   /* one byte, 0 or 1 */
#define OTR_DTYPE_U8 2
#define OTR_DTYPE_I8 3
#define OTR_DTYPE_I16 4
#define OTR_DTYPE_I32 5
#define OTR_DTYPE_I64 6
#define OTR_DTYPE_U16 7
#define OTR_DTYPE_U32 8
#define OTR_DTYPE_U64 9
#define OTR_DTYPE_F16 10   /* IEEE 754 binary16 */
#define OTR_DTYPE_BF16 11
#define OTR_DTYPE_F32 12
#define OTR_DTYPE_F64 13
#define OTR_DTYPE_C64 14   /* two f32: real, imaginary */
#define OTR_DTYPE_C128 15  /* two f64: real, imaginary */
/* Floating-point numbers of one byte: OCP OFP8, a scale of OCP microscaling formats, and two without a
 * negative zero, whose bits are their only NaN, and without infinities. */
#define OTR_DTYPE_F8E4M3 16     /* bias 7; no infinity, and all ones but the sign are NaN */
#define OTR_DTYPE_F8E5M2 17     /* bias 15; infinities and NaN as in IEEE 754 */
#define OTR_DTYPE_F8E8M0 18     /* 2^(bits - 127); 255 is NaN */
#define OTR_DTYPE_F8E4M3FNUZ 22 /* bias 8 */
#define OTR_DTYPE_F8E5M2FNUZ 23 /* bias 16 */
/* Bytes with two numbers of 4 bits each, the even place in the low half. Sizes and strides count bytes, so
 * that copies and views need not know of them. */
#define OTR_DTYPE_F4E2M1X2 19 /* OCP microscaling: 0, 0.5, 1, 1.5, 2, 3, 4, 6; the highest bit is the sign */
#define OTR_DTYPE_I4X2 20     /* -8 to 7 */
#define OTR_DTYPE_U4X2 21     /* 0 to 15 */

/* ---- Addresses and commands ----------------------------------------------------------------
 * A device address can be offset; 0 is never one.
 */
typedef uint64_t otr_address_t;

typedef uint32_t otr_copy_kind_t;
#define OTR_COPY_HOST_TO_DEVICE 1
#define OTR_COPY_DEVICE_TO_HOST 2
#define OTR_COPY_DEVICE_TO_DEVICE 3
#define OTR_COPY_HOST_TO_HOST 4 /* in stream order, both ends host memory */

/* A function that runs on the host in stream order, called exactly once. `upstream` is OTR_OK, or the
 * failure of the work before it: then only clean up. It must not call back into Outrigger or the
 * driver. Any other result than OTR_OK makes the stream fail. */
typedef otr_code_t (*otr_host_fn)(void* user, otr_code_t upstream);

/* A kernel for devices whose memory is host memory behind another address: add `bias` to a device
 * address of the launching device to reach its bytes. It is the same for all launches on a device.
 * The code that it returns is the outcome. */
typedef otr_code_t (*otr_host_kernel_fn)(const void* args, uint32_t args_size, int64_t bias);

/* ---- Extension chain -----------------------------------------------------------------------
 * A record of unknown type is skipped, not refused.
 */
typedef struct otr_ext {
  size_t struct_size;
  uint32_t type; /* OTR_EXT_*; from 0x8000'0000 on: vendors */
  uint32_t reserved;
  const struct otr_ext* next;
} otr_ext_t;

#define OTR_EXT_OPERATOR_ARGS 1u /* otr_operator_args_t */
#define OTR_EXT_COLLECTIVES 2u   /* otr_collective_api_t of driver.h */
#define OTR_EXT_NATIVE_QUEUE 3u  /* otr_native_queue_api_t of driver.h */
#define OTR_EXT_EXTERNAL 4u      /* otr_external_api_t of driver.h */

/* ---- Tensors and operator calls ------------------------------------------------------------ */
typedef struct otr_tensor {
  otr_address_t address;
  otr_dtype_t dtype; /* OTR_DTYPE_INVALID: an operand that is absent */
  uint32_t rank;
  const int64_t* sizes;   /* elements; NULL if rank is 0 */
  const int64_t* strides; /* elements, 0 for a broadcast dimension, may be negative */
} otr_tensor_t;

typedef struct otr_scalar {
  otr_dtype_t dtype; /* OTR_DTYPE_F64 or OTR_DTYPE_I64: which member holds the value */
  uint32_t reserved; /* 0 */
  union {
    double f64;
    int64_t i64;
  } value;
} otr_scalar_t;

/* One argument of a call, in the order of the operator's schema. Tensors and numbers that change from
 * launch to launch stand in the lists of the call; the argument says where. */
typedef uint32_t otr_value_kind_t;
#define OTR_VALUE_NONE 0    /* an optional argument that was left out */
#define OTR_VALUE_INPUT 1   /* a tensor that is read: inputs[index] */
#define OTR_VALUE_INPUTS 2  /* `count` of them, from inputs[index] on */
#define OTR_VALUE_OUTPUT 3  /* a tensor that is written, and read if the operator works in place */
#define OTR_VALUE_OUTPUTS 4
#define OTR_VALUE_SCALAR 5  /* a number: scalars[index] */
#define OTR_VALUE_SCALARS 6
#define OTR_VALUE_INT 7     /* `integer` */
#define OTR_VALUE_BOOL 8    /* `integer`, 0 or 1 */
#define OTR_VALUE_DTYPE 9   /* `integer` is an OTR_DTYPE_* */
#define OTR_VALUE_STRING 10 /* `string`, of `count` bytes and a NUL */
#define OTR_VALUE_INTS 11   /* `integers`, `count` of them */
#define OTR_VALUE_BOOLS 12  /* `integers`, each 0 or 1 */

typedef struct otr_value {
  otr_value_kind_t kind;
  uint32_t count; /* of lists and strings, else 0 */
  union {
    uint64_t index;
    int64_t integer;
    const int64_t* integers; /* NULL if count is 0 */
    const char* string;
  } of;
} otr_value_t;

/* The arguments of an operator whose entry in docs/operators.md has a schema, and of every operator of a
 * framework (`aten::...`), in schema order with defaults filled in. */
typedef struct otr_operator_args {
  otr_ext_t ext; /* of type OTR_EXT_OPERATOR_ARGS */
  const otr_value_t* values;
  uint32_t count;
  uint32_t reserved; /* 0 */
} otr_operator_args_t;

/* One call of an operator. Names, operands and scalars of each are in docs/operators.md. */
typedef struct otr_operator_call {
  size_t struct_size;
  const otr_ext_t* next; /* NULL, or a chain with an otr_operator_args_t */
  const char* name;   /* "add", "mm", ...; the host contract takes an operator id instead */
  const otr_tensor_t* inputs;
  const otr_tensor_t* outputs;
  const otr_scalar_t* scalars;
  uint32_t input_count;
  uint32_t output_count;
  uint32_t scalar_count;
  uint32_t flags;     /* OTR_CALL_* in the host contract; 0 in the driver contract */
} otr_operator_call_t;

/* ---- Device code ----------------------------------------------------------------------------- */
typedef uint32_t otr_code_format_t;
#define OTR_CODE_HOST_FUNCTION 1 /* `code` is an otr_host_kernel_fn; size 0. Runs where the memory is. */
#define OTR_CODE_SPIRV 2
#define OTR_CODE_PTX 3
#define OTR_CODE_ELF 4      /* a driver's own binary: cubin, hsaco, native */
#define OTR_CODE_OPENCL_C 5 /* `size` bytes of source, and a NUL behind them */
#define OTR_CODE_CUDA_C 6
#define OTR_CODE_VENDOR 0x80000000u /* and above */

/* What the device's code may use besides 32-bit numbers. */
#define OTR_FEATURE_F16 0x1u
#define OTR_FEATURE_F64 0x2u
#define OTR_FEATURE_ATOMIC_ADD_F32 0x4u
#define OTR_FEATURE_ATOMIC_64 0x8u /* atomic operations on 64-bit integers */

/* One parameter of a kernel. */
#define OTR_ARGUMENT_VALUE 0   /* `size` bytes of the block */
#define OTR_ARGUMENT_ADDRESS 1 /* a device address, 8 bytes of the block; may be 0 */
#define OTR_ARGUMENT_LOCAL 2   /* `size` bytes of local memory of the group; nothing in the block */
typedef struct otr_argument {
  uint32_t offset; /* in the argument block */
  uint32_t size;
  uint32_t kind; /* OTR_ARGUMENT_* */
} otr_argument_t;

/* How a kernel is launched. */
typedef struct otr_launch {
  size_t struct_size;
  const otr_ext_t* next;
  uint32_t grid[3];  /* work-groups; 1,1,1 for host functions */
  uint32_t block[3]; /* work-items of a group */
  uint32_t shared_bytes; /* local memory of a group besides that of its arguments */
  uint32_t args_size;
  const void* args;                /* packed argument block */
  const otr_argument_t* arguments; /* in the order of the kernel's parameters; NULL for host functions */
  uint32_t argument_count;
  uint32_t cost_ns;  /* the host's estimate of the run time, 0: unknown; a hint for scheduling */
  const char* label; /* for failures and traces; to a driver it lives as long as the process; or NULL */
} otr_launch_t;

/* ---- Communicators ---------------------------------------------------------------------------- */
/* How the elements of all ranks become one. */
typedef uint32_t otr_reduction_t;
#define OTR_REDUCE_SUM 1
#define OTR_REDUCE_PROD 2
#define OTR_REDUCE_MIN 3
#define OTR_REDUCE_MAX 4
#define OTR_REDUCE_AVG 5 /* the sum, divided by the number of ranks */

/* One part of an exchange: bytes that go to a rank, or come from it. */
#define OTR_TRANSFER_SEND 1
#define OTR_TRANSFER_RECEIVE 2
typedef struct otr_transfer {
  otr_address_t address;
  uint64_t size; /* bytes */
  uint32_t peer; /* a rank */
  uint32_t direction; /* OTR_TRANSFER_* */
} otr_transfer_t;

#endif /* OUTRIGGER_BASE_H */
