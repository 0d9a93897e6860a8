//! Functions of newer versions of libibverbs that this device does not support: completion
//! counters, DMA handles, and registration and queries with extended attributes. The functions
//! exist for the objects of other devices, which the real library serves if it has the function.
//! The real library must not get an object of this device, because it reads private parts of the
//! object's context.

use ibverbs_sys::{ibv_context, ibv_dm, ibv_mr, ibv_pd, ibv_qp};
use libc::{c_int, c_void, size_t};

use super::{forward, minus_one};

/// A DMA handle or a completion counter of another driver's device. The softroce device creates no
/// such objects. The first field shows that the object belongs to another driver, so that functions
/// of this crate pass it to the system's libibverbs.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Foreign {
    context: *mut ibv_context,
}

/// Defines functions that call the real library for the contexts of other devices, and fail with
/// `EOPNOTSUPP` for the contexts of this device.
macro_rules! unsupported {
    ($(
        $(#[$about:meta])*
        $name:ident($($argument:ident: $kind:ty),+) -> $answer:ty, for $context:expr $(, else $missing:expr)?;
    )+) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),+) -> $answer {
            // SAFETY: the C API requires the caller to pass valid objects.
            unsafe { forward!($context, $name($($argument),+) $(else $missing)?) };
            unsupported!(@answer $($missing)?)
        }
    )+};
    (@answer) => {
        super::real::Missing::missing()
    };
    (@answer $missing:expr) => {
        $missing
    };
}

unsupported! {
    /// Registers memory that a structure describes (`ibv_reg_mr_ex(3)`). Not supported.
    ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut c_void) -> *mut ibv_mr, for (*pd).context;
    /// Allocates a DMA handle (`ibv_alloc_dmah(3)`). Not supported.
    ibv_alloc_dmah(context: *mut ibv_context, attr: *mut c_void) -> *mut Foreign, for context;
    /// Deallocates a DMA handle (`ibv_dealloc_dmah(3)`). Not supported.
    ibv_dealloc_dmah(dmah: *mut Foreign) -> c_int, for (*dmah).context;
    /// Exports device memory as a dma-buf (`ibv_dm_export_dmabuf_fd(3)`). Not supported.
    ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int, for (*dm).context, else minus_one(libc::EOPNOTSUPP);
    /// Returns the speed of a port (`ibv_query_port_speed(3)`). Not supported.
    ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int, for context;
    /// Returns the limits of completion counters (`ibv_query_comp_cntr_caps(3)`). Not supported.
    _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut c_void, caps_size: size_t) -> c_int, for context;
    /// Creates a completion counter (`ibv_create_comp_cntr(3)`). Not supported.
    ibv_create_comp_cntr(context: *mut ibv_context, attr: *mut c_void) -> *mut Foreign, for context;
    /// Destroys a completion counter (`ibv_create_comp_cntr(3)`). Not supported.
    ibv_destroy_comp_cntr(counter: *mut Foreign) -> c_int, for (*counter).context;
    /// Sets the count of completions (`ibv_set_comp_cntr(3)`). Not supported.
    ibv_set_comp_cntr(counter: *mut Foreign, value: u64) -> c_int, for (*counter).context;
    /// Sets the count of errors (`ibv_set_comp_cntr(3)`). Not supported.
    ibv_set_err_comp_cntr(counter: *mut Foreign, value: u64) -> c_int, for (*counter).context;
    /// Increments the count of completions (`ibv_inc_comp_cntr(3)`). Not supported.
    ibv_inc_comp_cntr(counter: *mut Foreign, amount: u64) -> c_int, for (*counter).context;
    /// Increments the count of errors (`ibv_inc_comp_cntr(3)`). Not supported.
    ibv_inc_err_comp_cntr(counter: *mut Foreign, amount: u64) -> c_int, for (*counter).context;
    /// Reads the count of completions (`ibv_read_comp_cntr(3)`). Not supported.
    ibv_read_comp_cntr(counter: *mut Foreign, value: *mut u64) -> c_int, for (*counter).context;
    /// Reads the count of errors (`ibv_read_comp_cntr(3)`). Not supported.
    ibv_read_err_comp_cntr(counter: *mut Foreign, value: *mut u64) -> c_int, for (*counter).context;
    /// Attaches a completion counter to a queue pair (`ibv_qp_attach_comp_cntr(3)`). Not supported.
    ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, counter: *mut Foreign, attr: *mut c_void) -> c_int, for (*qp).context;
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::ptr;

    use super::*;
    use crate::abi::{device, errno, set_errno};

    /// Returns a context for tests that has only the fields by which functions identify the device
    /// of a context. A function that passed this context to the real library would crash.
    fn context() -> Box<ibv_context> {
        // SAFETY: zeroes are valid for all fields: null pointers, integers, and an unlocked mutex.
        let mut context: Box<ibv_context> = Box::new(unsafe { mem::zeroed() });
        context.device = device::address();
        context
    }

    #[test]
    fn newer_functions_on_objects_of_this_device_are_not_supported() {
        let mut context = context();
        let context = &raw mut *context;
        let mut pd = ibv_pd { context, handle: 0 };
        let mut counter = Foreign { context };
        let (pd, counter, nothing) = (&raw mut pd, &raw mut counter, ptr::null_mut());
        // SAFETY: zeroes are valid for all fields: null pointers, integers, and an unlocked mutex.
        let (mut qp, mut dm): (ibv_qp, ibv_dm) = unsafe { mem::zeroed() };
        (qp.context, dm.context) = (context, context);
        let (qp, dm) = (&raw mut qp, &raw mut dm);

        // SAFETY: the objects are valid as far as the functions read them.
        unsafe {
            let refused = |make: &dyn Fn() -> usize| {
                set_errno(0);
                assert_eq!((make(), errno()), (0, libc::EOPNOTSUPP));
            };
            refused(&|| ibv_reg_mr_ex(pd, nothing).addr());
            refused(&|| ibv_alloc_dmah(context, nothing).addr());
            refused(&|| ibv_create_comp_cntr(context, nothing).addr());
            for status in [
                ibv_dealloc_dmah(counter),
                ibv_query_port_speed(context, 1, ptr::null_mut()),
                _ibv_query_comp_cntr_caps(context, nothing, 0),
                ibv_destroy_comp_cntr(counter),
                ibv_set_comp_cntr(counter, 1),
                ibv_set_err_comp_cntr(counter, 1),
                ibv_inc_comp_cntr(counter, 1),
                ibv_inc_err_comp_cntr(counter, 1),
                ibv_read_comp_cntr(counter, ptr::null_mut()),
                ibv_read_err_comp_cntr(counter, ptr::null_mut()),
                ibv_qp_attach_comp_cntr(qp, counter, nothing),
            ] {
                assert_eq!(status, libc::EOPNOTSUPP);
            }
            set_errno(0);
            assert_eq!(ibv_dm_export_dmabuf_fd(dm), -1);
            assert_eq!(errno(), libc::EOPNOTSUPP);
        }
    }
}
