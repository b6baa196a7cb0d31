/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The C template, but for one thing that FAULT names. Only a fill without a pattern sets most of them
 * off, so that they meet a single test of the suite. Never loaded by anything but tests.
 */
#include <outrigger/driver.h> /* first: the declaration keeps the real name */

#define otr_driver_get_api template_get_api
#include "driver.c"
#undef otr_driver_get_api

#include <stdlib.h>
#include <unistd.h>

#define ABORTS 1        /* while the test runs */
#define HANGS 2         /* while the test runs */
#define ABORTS_LATE 3   /* when the process ends */
#define PRINTS 4        /* to the standard error */
#define LOSES_DEVICE 5  /* says so */
#define EXITS 6         /* as if all were well */
#define ABORTS_AT_OPEN 7

static const otr_driver_api_t* whole;

static otr_code_t faulty_fill(otr_queue_t* queue, const otr_fill_t* params) {
  if (params->pattern == NULL) {
    if (FAULT == ABORTS) abort();
    if (FAULT == HANGS) for (;;) pause();
    if (FAULT == ABORTS_LATE) atexit(abort);
    if (FAULT == PRINTS) fprintf(stderr, "acme: no pattern\n");
    if (FAULT == LOSES_DEVICE) return fail(OTR_ERR_DEVICE_LOST, "the board fell off the bus");
    if (FAULT == EXITS) exit(0);
  }
  return whole->fill(queue, params);
}

static otr_code_t faulty_open(const otr_open_params_t* params, otr_driver_t** driver) {
  if (FAULT == ABORTS_AT_OPEN) abort();
  return whole->open(params, driver);
}

OTR_DRIVER_EXPORT otr_code_t otr_driver_get_api(const otr_host_info_t* host, const otr_driver_api_t** api) {
  static otr_driver_api_t faulty;
  const otr_driver_api_t* table = NULL;
  const otr_code_t code = template_get_api(host, api == NULL ? NULL : &table);
  if (table == NULL) return code;
  whole = table;
  faulty = *whole;
  faulty.fill = faulty_fill;
  faulty.open = faulty_open;
  *api = &faulty;
  return code;
}
