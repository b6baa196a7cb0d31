/* A persistent kernel: its groups, the workers, run the tasks of a graph. A task is a grid of groups of some kernel; it is
 * cut into pieces, which workers take by tickets in the order of the tasks. A piece starts when the tasks that its task waits
 * for are done.
 *
 * A task waits only for tasks in front of it, so all that a worker waits for was taken by workers that run. It is right
 * whatever number of workers runs at a time: also if they run one after the other, since the first one takes all tickets.
 *
 * The table has 8 words for each task, and those of one more behind the last. Arguments and the lists of what is waited
 * for lie elsewhere in it. The state is 0 before and behind a launch: the last worker that leaves clears it.
 */
typedef struct {
  i64 tasks;
  i64 workers;
} arguments_t;

/* The words of a task. */
#define UNIT 0       /* the kernel's number in otr_run_unit */
#define TICKET 1     /* the first of its tickets */
#define GROUPS 2     /* of its grid */
#define WIDTH 3      /* of its grid */
#define HEIGHT 4
#define DEPTH 5
#define ARGUMENTS 6  /* where they begin in the table */
#define WAITS 7      /* where the list begins: a count, and numbers of tasks */
#define WORDS 8

/* The words of the state in front of the counters of the tasks. */
#define TAKEN 0      /* tickets */
#define LEFT 1       /* workers */
#define DONE 2       /* from here on: pieces of each task that are done */

OTR_FUNCTION void otr_piece(OTR_GLOBAL const i64* table, OTR_GLOBAL const i64* task, i64 begin, i64 end) {
  otr_place_t place;
  place.count[0] = (i32)task[WIDTH];
  place.count[1] = (i32)task[HEIGHT];
  place.count[2] = (i32)task[DEPTH];
  place.group[0] = place.group[1] = place.group[2] = 0;
  otr_run_unit(&place, task[UNIT], begin, end, table + task[ARGUMENTS]);
}

OTR_ENTRY(tasks)(OTR_ENTRY_ITEM OTR_GLOBAL const i64* table, OTR_GLOBAL u32* state, const arguments_t args) {
  if (args.workers == 1) {
    for (i64 at = 0; at < args.tasks; at++) {
      otr_piece(table, table + at * WORDS, 0, table[at * WORDS + GROUPS]);
      /* Two tasks may see the same bytes as numbers of two types, which a compiler may take for different memory. */
      OTR_FENCE();
    }
    return;
  }
  i64 at = 0;
  for (;;) {
    const i64 ticket = (i64)otr_atomic_add_u32(state + TAKEN, 1);
    OTR_GLOBAL const i64* task;
    while (at < args.tasks && ticket >= table[(at + 1) * WORDS + TICKET]) at++;
    if (at == args.tasks) break;
    task = table + at * WORDS;
    for (i64 k = 0; k < table[task[WAITS]]; k++) {
      const i64 other = table[task[WAITS] + 1 + k];
      const u32 pieces = (u32)(table[(other + 1) * WORDS + TICKET] - table[other * WORDS + TICKET]);
      while (otr_atomic_load_u32(state + DONE + other) != pieces) {
      }
    }
    OTR_FENCE();
    const i64 piece = ticket - task[TICKET], pieces = task[WORDS + TICKET] - task[TICKET];
    otr_piece(table, task, task[GROUPS] * piece / pieces, task[GROUPS] * (piece + 1) / pieces);
    OTR_FENCE();
    otr_atomic_add_u32(state + DONE + at, 1);
  }
  if (otr_atomic_add_u32(state + LEFT, 1) == (u32)args.workers - 1)
    for (i64 k = 0; k < DONE + args.tasks; k++) state[k] = 0;
}
