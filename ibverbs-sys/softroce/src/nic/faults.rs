use std::sync::Arc;

use crate::config::Config;
use crate::fault::Faults;
use crate::per_process::PerProcess;

static FAULTS: PerProcess<Arc<Faults>> = PerProcess::new(|| {
    let default = Config::default();
    // Invalid variables are reported when the device is opened.
    Arc::new(Config::of_process().unwrap_or(&default).faults())
});

/// Returns the faults of the process's device. They can be arranged before the device is opened.
#[inline]
pub fn faults() -> &'static Faults {
    of_process()
}

/// Returns the faults as the NIC shares them.
#[inline]
pub(super) fn of_process() -> &'static Arc<Faults> {
    FAULTS.get()
}

/// Leaves the parent's faults alone, in a child of `fork`: the child's begin with those of the environment.
pub(super) fn forget() {
    FAULTS.forget();
}
