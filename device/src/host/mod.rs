//! The built-in driver `host`: devices whose memory is memory of this process.

use crate::sys;

/// The name of the driver.
pub(crate) const NAME: &str = "host";

struct Api(sys::otr_driver_api);
// SAFETY: never written.
unsafe impl Sync for Api {}
// SAFETY: zero is valid for all fields.
static API: Api = Api(unsafe { std::mem::zeroed() });

/// The driver's table.
pub(crate) fn api() -> &'static sys::otr_driver_api {
    &API.0
}
