/* Recurrent cells behind their matrix products, and their gradients. An item has an element of the state.
 *
 *   KIND           0 LSTM, 1 its gradient, 2 GRU, 3 its gradient
 *   FIRST, SECOND  1: the first and the second operand are there of those that may be left out: the biases of input and
 *                  hidden state, or for kind 1 the gradients of hidden state and cell
 *   A, T           element type and register type
 *   CHUNK          elements of a group
 */
typedef struct {
  i64 count, columns;
  i64 strides[8][2];      /* of rows and columns; of a bias the second one */
} arguments_t;

#define PLACE(which, row, column) ((row) * args.strides[which][0] + (column) * args.strides[which][1])
#define READ(which, row, column) OTR_LOAD(A, T, in##which, PLACE(which, row, column))
#define WRITE(which, row, column, x) OTR_STORE(A, T, out##which, PLACE(which, row, column), x)

OTR_FUNCTION T otr_sigmoid(T x) { return 1 / (1 + F(exp)(-x)); }

#if FIRST
#define OF_INPUT(row, column) (READ(0, row, column) + READ(3, 0, column))
#else
#define OF_INPUT(row, column) READ(0, row, column)
#endif
#if SECOND
#define OF_HIDDEN(row, column) (READ(1, row, column) + READ(4, 0, column))
#else
#define OF_HIDDEN(row, column) READ(1, row, column)
#endif
#define GATE(row, column) (OF_INPUT(row, column) + OF_HIDDEN(row, column))

OTR_KERNEL(cell)(OTR_ITEM OTR_GLOBAL const OTR_MEMORY(A) * in0, OTR_GLOBAL const OTR_MEMORY(A) * in1,
    OTR_GLOBAL const OTR_MEMORY(A) * in2, OTR_GLOBAL const OTR_MEMORY(A) * in3, OTR_GLOBAL const OTR_MEMORY(A) * in4,
    OTR_GLOBAL OTR_MEMORY(A) * out5, OTR_GLOBAL OTR_MEMORY(A) * out6, OTR_GLOBAL OTR_MEMORY(A) * out7,
    const arguments_t args) {
  const i64 begin = (i64)OTR_GROUP_ID(0) * CHUNK;
  const i64 end = begin + CHUNK < args.count ? begin + CHUNK : args.count, h = args.columns;
  (void)in0;
  (void)in1;
  (void)in2;
  (void)in3;
  (void)in4;
  (void)out7;
  for (i64 at = begin + OTR_LANE; at < end; at += OTR_GROUP_SIZE) {
    const i64 row = at / h, column = at - row * h;
#if KIND == 0
    const T input = otr_sigmoid(GATE(row, column)), forget = otr_sigmoid(GATE(row, column + h));
    const T fresh = F(tanh)(GATE(row, column + 2 * h)), shown = otr_sigmoid(GATE(row, column + 3 * h));
    const T state = forget * READ(2, row, column) + input * fresh;
    WRITE(5, row, column, shown * F(tanh)(state));
    WRITE(6, row, column, state);
    WRITE(7, row, column, input);
    WRITE(7, row, column + h, forget);
    WRITE(7, row, column + 2 * h, fresh);
    WRITE(7, row, column + 3 * h, shown);
#elif KIND == 1
    const T input = READ(4, row, column), forget = READ(4, row, column + h);
    const T fresh = READ(4, row, column + 2 * h), shown = READ(4, row, column + 3 * h);
    const T state = F(tanh)(READ(3, row, column));
    T of_hidden = 0, of_state = 0;
#if FIRST
    of_hidden = READ(0, row, column);
#endif
#if SECOND
    of_state = READ(1, row, column);
#endif
    of_state += of_hidden * shown * (1 - state * state);
    const T old = READ(2, row, column);
    WRITE(5, row, column, of_state * fresh * input * (1 - input));
    WRITE(5, row, column + h, of_state * old * forget * (1 - forget));
    WRITE(5, row, column + 2 * h, of_state * input * (1 - fresh * fresh));
    WRITE(5, row, column + 3 * h, of_hidden * state * shown * (1 - shown));
    WRITE(6, row, column, of_state * forget);
#elif KIND == 2
    const T reset = otr_sigmoid(GATE(row, column)), update = otr_sigmoid(GATE(row, column + h));
    const T recurrent = OF_HIDDEN(row, column + 2 * h), old = READ(2, row, column);
    const T fresh = F(tanh)(OF_INPUT(row, column + 2 * h) + reset * recurrent);
    WRITE(5, row, column, fresh + update * (old - fresh));
    WRITE(6, row, column, reset);
    WRITE(6, row, column + h, update);
    WRITE(6, row, column + 2 * h, fresh);
    WRITE(6, row, column + 3 * h, old);
    WRITE(6, row, column + 4 * h, recurrent);
#else
    const T outer = READ(0, row, column), reset = READ(1, row, column), update = READ(1, row, column + h);
    const T fresh = READ(1, row, column + 2 * h), old = READ(1, row, column + 3 * h);
    const T of_fresh = outer * (1 - update) * (1 - fresh * fresh);
    const T of_reset = of_fresh * READ(1, row, column + 4 * h) * reset * (1 - reset);
    const T of_update = outer * (old - fresh) * update * (1 - update);
    WRITE(5, row, column, of_reset);
    WRITE(5, row, column + h, of_update);
    WRITE(5, row, column + 2 * h, of_fresh);
    WRITE(6, row, column, of_reset);
    WRITE(6, row, column + h, of_update);
    WRITE(6, row, column + 2 * h, of_fresh * reset);
    WRITE(7, row, column, outer * update);
#endif
  }
}
