use std::mem::MaybeUninit;
use std::sync::Arc;

use ibverbs_sys::{ibv_context, ibv_xrcd, ibv_xrcd_init_attr, ibv_xrcd_init_attr_mask};
use libc::c_int;

use super::{errno, fail, number, verb};
use crate::fault::Verb;
use crate::object_counts::{Counted, Kind};
use crate::per_process::PerProcess;
use crate::xrc::{File, XrcDomain, XrcDomains};

/// The C object that `ibv_open_xrcd` returns: the public structure, followed by this device's XRC
/// (extended reliable connection) domain.
#[repr(C)]
struct XrcDomainHandle {
    public: ibv_xrcd,
    domain: Arc<XrcDomain>,
    _counted: Counted,
}

/// The domains for extended reliable connections (XRC domains) that this process has open. All open
/// contexts (`ibv_context`) of the process share them.
static DOMAINS: PerProcess<XrcDomains> = PerProcess::new(XrcDomains::default);

/// Discards the XRC domains that the parent has opened, in a child of `fork`. The child then has no
/// open domain.
pub(super) fn reset_in_child() {
    DOMAINS.reset_in_child();
}

/// Returns the [`XrcDomain`] that is stored in the C object `xrcd`.
///
/// # Safety
/// `xrcd` must belong to this device, and must not be closed while the reference is used.
pub(crate) unsafe fn domain<'a>(xrcd: *const ibv_xrcd) -> &'a Arc<XrcDomain> {
    // SAFETY: the caller guarantees an XRC domain of this device, and each such domain is the first
    // field of an `XrcDomainHandle`.
    unsafe { &(*xrcd.cast::<XrcDomainHandle>()).domain }
}

/// Opens an XRC domain (`ibv_open_xrcd(3)`).
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init_attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const NEEDED: u32 = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
        | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    verb(Verb::OpenXrcd, fail, || {
        // SAFETY: the C API requires the caller to pass valid attributes.
        let attributes = unsafe { &*init_attr };
        if attributes.comp_mask & !NEEDED != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        let flags = attributes.oflags;
        if attributes.comp_mask != NEEDED || flags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return fail(libc::EINVAL);
        }
        let file = match attributes.fd {
            -1 => None,
            descriptor => match file_of(descriptor) {
                Ok(file) => Some(file),
                Err(errno) => return fail(errno),
            },
        };
        let (create, exclusive) = (flags & libc::O_CREAT != 0, flags & libc::O_EXCL != 0);
        match DOMAINS.get().open(file, create, exclusive) {
            Ok(domain) => Box::into_raw(Box::new(XrcDomainHandle {
                public: ibv_xrcd { context },
                domain,
                _counted: Counted::new(Kind::XrcDomain),
            }))
            .cast(),
            Err(error) => fail(error.errno()),
        }
    })
}

/// Closes an XRC domain (`ibv_close_xrcd(3)`). Returns 0, or an error number if queue pairs or
/// shared receive queues still use the domain.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    verb(Verb::CloseXrcd, number, || {
        // SAFETY: only contexts of this device have this function, so the XRC domain belongs to it.
        if let Err(refusal) = DOMAINS.get().close(unsafe { domain(xrcd) }) {
            return refusal.errno();
        }
        // SAFETY: `open_xrcd` created the object by `Box::into_raw`, and the C API forbids its use
        // after this call.
        drop(unsafe { Box::from_raw(xrcd.cast::<XrcDomainHandle>()) });
        0
    })
}

/// Returns the identity of the file to which `descriptor` refers: its device and inode numbers.
/// Fails with an error number if the descriptor is not valid.
fn file_of(descriptor: c_int) -> Result<File, c_int> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: any descriptor number may be passed. The status is initialized if the result is 0.
    let status = unsafe {
        if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
            return Err(errno());
        }
        status.assume_init()
    };
    Ok((status.st_dev, status.st_ino))
}
