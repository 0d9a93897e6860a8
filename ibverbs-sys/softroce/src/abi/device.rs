use std::cell::UnsafeCell;
use std::mem;

use ibverbs_sys::{_ibv_device_ops, ibv_context, ibv_device, ibv_node_type, ibv_transport_type};
use libc::c_char;

/// The device's name in the list.
pub(crate) const NAME: &str = "softroce0";

/// Whether an object with this context is ours; a device that is not has the real library's contexts.
///
/// # Safety
/// `context` is a context of some verbs library.
pub(crate) unsafe fn is_ours(context: *const ibv_context) -> bool {
    // SAFETY: the caller's promise; the field is never written after the context was made.
    unsafe { (*context).device == device() }
}

/// The address that says that something is ours.
pub(crate) fn device() -> *mut ibv_device {
    DEVICE.0.get().cast()
}

/// Programs and drivers look past the public part: `is_mlx5_dev` reads the operations that a
/// driver's device has there. Zeroes tell them that it is not theirs.
#[repr(C)]
struct Device {
    public: ibv_device,
    private: [u8; 1024],
}

#[repr(transparent)]
struct Shared(UnsafeCell<Device>);

// SAFETY: nobody writes to the device; it is in a cell because C has mutable pointers to it.
unsafe impl Sync for Shared {}

static DEVICE: Shared = Shared(UnsafeCell::new(Device {
    public: ibv_device {
        _ops: _ibv_device_ops {
            _dummy1: None,
            _dummy2: None,
        },
        node_type: ibv_node_type::IBV_NODE_CA,
        transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
        name: text(NAME),
        dev_name: text(NAME),
        dev_path: text(""),
        ibdev_path: text(""),
    },
    private: [0; 1024],
}));

/// A string in a field of a fixed size, with a zero behind it.
const fn text<const N: usize>(text: &str) -> [c_char; N] {
    assert!(text.len() < N);
    let mut field = [0; N];
    let mut i = 0;
    while i < text.len() {
        field[i] = text.as_bytes()[i].cast_signed();
        i += 1;
    }
    field
}

const _: () = assert!(mem::offset_of!(Device, private) == size_of::<ibv_device>());
