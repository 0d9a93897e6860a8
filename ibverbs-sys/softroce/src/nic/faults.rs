use std::sync::Arc;

use crate::config::Config;
use crate::fault::Faults;
use crate::per_process::PerProcess;

static FAULTS: PerProcess<Arc<Faults>> = PerProcess::new(|| {
    let default = Config::default();
    // Invalid variables are reported when the device is opened.
    Arc::new(Config::of_process().unwrap_or(&default).faults())
});

/// Returns the fault injector of the process's device. Faults can be configured before the device
/// is opened.
#[inline]
pub fn faults() -> &'static Faults {
    of_process()
}

/// Returns the fault injector of this process's device, which loses, delays or changes packets in
/// tests.
#[inline]
pub(super) fn of_process() -> &'static Arc<Faults> {
    FAULTS.get()
}

/// Replaces the fault injector in a child of `fork` by a new one that is configured from the
/// environment. The parent's fault injector does not change.
pub(super) fn reset_in_child() {
    FAULTS.reset_in_child();
}
