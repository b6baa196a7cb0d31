/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Tern, the SDK of an accelerator that does not exist: what a vendor has before there is a driver. It knows nothing of
 * Outrigger. Boards have memory that the host cannot touch, and streams that work in order, late, and a few commands at a
 * time. Any thread may call anything; of one stream one thread at a time.
 */
#ifndef TERN_H
#define TERN_H

#include <stdint.h>

typedef struct tern_board tern_board;
typedef struct tern_stream tern_stream;
typedef struct tern_fence tern_fence;
typedef uint64_t tern_ptr; /* memory of a board; no pointer of the host */

typedef enum tern_status {
  TERN_OK = 0,
  TERN_BAD_VALUE = -1,   /* an argument makes no sense */
  TERN_NO_BOARD = -2,    /* no board has this number */
  TERN_NO_MEMORY = -3,   /* the board's memory is used up */
  TERN_FULL = -4,        /* the stream holds as many commands as it can: wait for some */
  TERN_BUSY = -5,        /* the object is still used by the board */
  TERN_BAD_POINTER = -6, /* a command met an address outside of the board's memory; its stream has stopped */
} tern_status;

const char* tern_status_text(tern_status status);

/* ---- Boards ---- */
typedef struct tern_info {
  char name[32];
  uint64_t memory;     /* bytes */
  uint32_t page;       /* bytes: allocations are multiples of it and aligned to it */
  uint32_t tick;       /* nanoseconds of one tick of the board's clock */
} tern_info;

unsigned tern_count(void);
tern_status tern_open(unsigned number, tern_board** board); /* the same board may be opened several times */
void tern_close(tern_board* board);
void tern_describe(unsigned number, tern_info* info); /* of a board that need not be open */
uint64_t tern_ticks(const tern_board* board);

/* ---- Memory ---- */
tern_status tern_alloc(tern_board* board, uint64_t size, tern_ptr* memory);
tern_status tern_free(tern_board* board, tern_ptr memory); /* the start of an allocation that no command uses */
uint64_t tern_free_memory(tern_board* board);

/* ---- Streams: a call puts a command behind the others and returns ---- */
tern_status tern_stream_create(tern_board* board, tern_stream** stream);
tern_status tern_stream_destroy(tern_stream* stream); /* TERN_BUSY while it has commands */
tern_status tern_write(tern_stream* stream, tern_ptr to, const void* from, uint64_t size); /* both stay untouched until done */
tern_status tern_read(tern_stream* stream, void* to, tern_ptr from, uint64_t size);
tern_status tern_move(tern_stream* stream, tern_ptr to, tern_ptr from, uint64_t size);
tern_status tern_set(tern_stream* stream, tern_ptr to, uint32_t word, uint64_t words); /* `to` is a multiple of 4 */

/* ---- Fences: a number that only grows ---- */
tern_status tern_fence_create(tern_board* board, tern_fence** fence); /* at 0 */
tern_status tern_fence_destroy(tern_fence* fence);
tern_status tern_signal(tern_stream* stream, tern_fence* fence, uint64_t value); /* a command: behind it the fence is at `value` */
/* Waits until the fence is at `value` or the stream that was to signal it has stopped; answers what stopped it. */
tern_status tern_fence_wait(tern_fence* fence, uint64_t value);

#endif
