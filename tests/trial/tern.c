/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The accelerator behind tern.h: each board is a piece of host memory at addresses that no host pointer has, and each stream
 * a thread with a ring of commands, which takes a while for each. Made for trying how a driver is written; see README.md.
 */
#define _GNU_SOURCE
#include "tern.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BOARDS 2u
#define MEMORY (UINT64_C(256) << 20) /* bytes of a board */
#define PAGE 512u
#define RING 64u                     /* commands that a stream holds */
#define LATENCY 3000                 /* nanoseconds before each command */
#define TICK 40u
#define BASE(number) ((UINT64_C(1) << 58) + ((uint64_t)(number) << 40))

struct span { uint64_t start, size; struct span* next; }; /* of memory that is used, by its start */

/* The hardware: one for all who opened it. */
struct tern_board {
  unsigned number;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  char* memory;
  struct span* used;
};

struct command {
  enum { WRITE, READ, MOVE, SET, SIGNAL } kind;
  tern_ptr to, from;
  void* host;
  uint64_t size, value;
  tern_fence* fence;
};

struct tern_stream {
  tern_board* board;
  pthread_t thread;
  struct command ring[RING];
  uint64_t given, done;
  bool closing;
  tern_status stopped;
};

struct tern_fence {
  tern_board* board;
  uint64_t value;
  tern_status stopped;
};

static tern_board boards[BOARDS] = {
    {.number = 0, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER},
    {.number = 1, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER},
};

const char* tern_status_text(tern_status status) {
  switch (status) {
    case TERN_OK: return "ok";
    case TERN_BAD_VALUE: return "bad value";
    case TERN_NO_BOARD: return "no such board";
    case TERN_NO_MEMORY: return "the board's memory is used up";
    case TERN_FULL: return "the stream is full";
    case TERN_BUSY: return "busy";
    case TERN_BAD_POINTER: return "bad pointer";
  }
  return "unknown status";
}

unsigned tern_count(void) { return BOARDS; }

tern_status tern_open(unsigned number, tern_board** board) {
  if (board == NULL) return TERN_BAD_VALUE;
  if (number >= BOARDS) return TERN_NO_BOARD;
  tern_board* found = &boards[number];
  pthread_mutex_lock(&found->lock);
  if (found->memory == NULL) {
    void* memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    found->memory = memory == MAP_FAILED ? NULL : memory;
  }
  const bool ready = found->memory != NULL;
  pthread_mutex_unlock(&found->lock);
  if (!ready) return TERN_NO_MEMORY;
  *board = found;
  return TERN_OK;
}

void tern_close(tern_board* board) { (void)board; } /* the hardware stays */

void tern_describe(unsigned number, tern_info* info) {
  *info = (tern_info){.memory = MEMORY, .page = PAGE, .tick = TICK};
  snprintf(info->name, sizeof info->name, "Tern T%u", 100 + number);
}

uint64_t tern_ticks(const tern_board* board) {
  (void)board;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return ((uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec) / TICK;
}

/* ---- Memory: the first gap that is large enough ---- */
tern_status tern_alloc(tern_board* board, uint64_t size, tern_ptr* memory) {
  if (board == NULL || memory == NULL || size == 0) return TERN_BAD_VALUE;
  if (size > MEMORY) return TERN_NO_MEMORY;
  struct span* made = malloc(sizeof *made);
  if (made == NULL) return TERN_NO_MEMORY;
  made->size = (size + PAGE - 1) / PAGE * PAGE;
  made->start = BASE(board->number);
  const uint64_t end = made->start + MEMORY;
  pthread_mutex_lock(&board->lock);
  struct span** link = &board->used;
  for (; *link != NULL && (*link)->start - made->start < made->size; link = &(*link)->next)
    made->start = (*link)->start + (*link)->size;
  const bool fits = end - made->start >= made->size;
  if (fits) made->next = *link, *link = made;
  pthread_mutex_unlock(&board->lock);
  if (!fits) return free(made), TERN_NO_MEMORY;
  *memory = made->start;
  return TERN_OK;
}

tern_status tern_free(tern_board* board, tern_ptr memory) {
  if (board == NULL) return TERN_BAD_VALUE;
  pthread_mutex_lock(&board->lock);
  struct span** link = &board->used;
  while (*link != NULL && (*link)->start != memory) link = &(*link)->next;
  struct span* found = *link;
  if (found != NULL) *link = found->next;
  pthread_mutex_unlock(&board->lock);
  free(found);
  return found != NULL ? TERN_OK : TERN_BAD_POINTER;
}

uint64_t tern_free_memory(tern_board* board) {
  uint64_t left = MEMORY;
  pthread_mutex_lock(&board->lock);
  for (const struct span* span = board->used; span != NULL; span = span->next) left -= span->size;
  pthread_mutex_unlock(&board->lock);
  return left;
}

/* ---- Streams ---- */
static char* reach(const tern_board* board, tern_ptr memory, uint64_t size) {
  const uint64_t offset = memory - BASE(board->number);
  return offset <= MEMORY && size <= MEMORY - offset ? board->memory + offset : NULL;
}

static tern_status perform(const tern_board* board, const struct command* command) {
  nanosleep(&(struct timespec){.tv_nsec = LATENCY}, NULL);
  char* to = command->kind == READ ? command->host : reach(board, command->to, command->size);
  const char* from = command->kind == WRITE ? command->host : reach(board, command->from, command->size);
  if (command->kind == SET) from = to;
  if (to == NULL || from == NULL) return TERN_BAD_POINTER;
  if (command->kind != SET) return memmove(to, from, command->size), TERN_OK;
  const uint32_t word = (uint32_t)command->value;
  for (uint64_t at = 0; at < command->size; at += sizeof word) memcpy(to + at, &word, sizeof word);
  return TERN_OK;
}

static void* stream_main(void* argument) {
  tern_stream* stream = argument;
  tern_board* board = stream->board;
  pthread_mutex_lock(&board->lock);
  for (;;) {
    while (stream->given == stream->done && !stream->closing) pthread_cond_wait(&board->changed, &board->lock);
    if (stream->given == stream->done) break;
    const struct command* command = &stream->ring[stream->done % RING];
    if (command->kind == SIGNAL) {
      command->fence->value = command->value;
      command->fence->stopped = stream->stopped;
    } else if (stream->stopped == TERN_OK) {
      pthread_mutex_unlock(&board->lock);
      const tern_status status = perform(board, command);
      pthread_mutex_lock(&board->lock);
      stream->stopped = status;
    }
    stream->done++;
    pthread_cond_broadcast(&board->changed);
  }
  pthread_mutex_unlock(&board->lock);
  return NULL;
}

tern_status tern_stream_create(tern_board* board, tern_stream** stream) {
  if (board == NULL || stream == NULL) return TERN_BAD_VALUE;
  tern_stream* made = calloc(1, sizeof *made);
  if (made == NULL) return TERN_NO_MEMORY;
  made->board = board;
  if (pthread_create(&made->thread, NULL, stream_main, made) != 0) return free(made), TERN_NO_MEMORY;
  *stream = made;
  return TERN_OK;
}

tern_status tern_stream_destroy(tern_stream* stream) {
  if (stream == NULL) return TERN_BAD_VALUE;
  pthread_mutex_lock(&stream->board->lock);
  const bool busy = stream->given != stream->done;
  stream->closing = !busy;
  pthread_cond_broadcast(&stream->board->changed);
  pthread_mutex_unlock(&stream->board->lock);
  if (busy) return TERN_BUSY;
  pthread_join(stream->thread, NULL);
  free(stream);
  return TERN_OK;
}

static tern_status give(tern_stream* stream, struct command command) {
  if (stream == NULL) return TERN_BAD_VALUE;
  pthread_mutex_lock(&stream->board->lock);
  const bool full = stream->given - stream->done == RING;
  if (!full) stream->ring[stream->given++ % RING] = command;
  pthread_cond_broadcast(&stream->board->changed);
  pthread_mutex_unlock(&stream->board->lock);
  return full ? TERN_FULL : TERN_OK;
}

tern_status tern_write(tern_stream* stream, tern_ptr to, const void* from, uint64_t size) {
  return give(stream, (struct command){.kind = WRITE, .to = to, .host = (void*)from, .size = size});
}

tern_status tern_read(tern_stream* stream, void* to, tern_ptr from, uint64_t size) {
  return give(stream, (struct command){.kind = READ, .host = to, .from = from, .size = size});
}

tern_status tern_move(tern_stream* stream, tern_ptr to, tern_ptr from, uint64_t size) {
  return give(stream, (struct command){.kind = MOVE, .to = to, .from = from, .size = size});
}

tern_status tern_set(tern_stream* stream, tern_ptr to, uint32_t word, uint64_t words) {
  if (to % sizeof word != 0 || words > MEMORY) return TERN_BAD_VALUE;
  return give(stream, (struct command){.kind = SET, .to = to, .value = word, .size = words * sizeof word});
}

/* ---- Fences ---- */
tern_status tern_fence_create(tern_board* board, tern_fence** fence) {
  if (board == NULL || fence == NULL) return TERN_BAD_VALUE;
  tern_fence* made = calloc(1, sizeof *made);
  if (made == NULL) return TERN_NO_MEMORY;
  made->board = board;
  *fence = made;
  return TERN_OK;
}

tern_status tern_fence_destroy(tern_fence* fence) {
  free(fence);
  return TERN_OK;
}

tern_status tern_signal(tern_stream* stream, tern_fence* fence, uint64_t value) {
  if (fence == NULL) return TERN_BAD_VALUE;
  return give(stream, (struct command){.kind = SIGNAL, .fence = fence, .value = value});
}

tern_status tern_fence_wait(tern_fence* fence, uint64_t value) {
  if (fence == NULL) return TERN_BAD_VALUE;
  pthread_mutex_lock(&fence->board->lock);
  while (fence->value < value) pthread_cond_wait(&fence->board->changed, &fence->board->lock);
  const tern_status status = fence->stopped;
  pthread_mutex_unlock(&fence->board->lock);
  return status;
}
