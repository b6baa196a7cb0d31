/* Puts the group with this number, of all of a grid, into its place. */
OTR_FUNCTION void otr_put(otr_place_t* place, i64 group) {
  place->group[0] = (i32)group;
  if (place->count[1] > 1 || place->count[2] > 1) {
    const i64 row = group / place->count[0];
    place->group[0] = (i32)(group % place->count[0]);
    place->group[1] = (i32)(row % place->count[1]);
    place->group[2] = (i32)(row / place->count[1]);
  }
}
