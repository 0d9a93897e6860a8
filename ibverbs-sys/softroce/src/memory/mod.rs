//! Registered memory: the regions and windows of a NIC, found by their keys, and copies from and to
//! them.
//!
//! The program's memory is accessed only in `copy` and, by system calls, in `kernel`. All other
//! modules only check access rights and ranges.
//!
//! Memory that the device allocates for regions ([`Arena`]) is in a file. `segment` maps the file
//! in this process, and peer processes of the same host can map it as well. To reach bytes, a peer
//! needs their location in the file (an [`ArenaLocation`]) and the file's descriptor. The functions
//! [`Span::place`] (of a region), [`Registry::place`] (by a key), and [`Arena::find`] with
//! [`Block::place`] (by an address) return such a location.
//!
//! `peers` is the interface to processes of the host that access regions and windows directly.

mod access;
mod arena;
pub(crate) mod copy;
mod device;
mod direct_copy;
mod entries;
mod guarded;
mod kernel;
mod mapping;
mod peers;
mod piece;
mod prefetch;
mod range_allocator;
mod read_mostly;
mod region;
mod registry;
mod segment;
mod span;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod window;

pub use access::{region_access, window_access};
pub use arena::{Arena, ArenaLocation, Block};
pub use device::DeviceMemory;
pub(crate) use kernel::reset_in_child;
pub use mapping::is_mapped;
pub(crate) use peers::{FilePlace, Peers, Published};
pub(crate) use piece::Piece;
pub(crate) use prefetch::prefetch_for_write;
pub use region::{RegionAttributes, RegionChange};
pub(crate) use registry::Regions;
pub use registry::Registry;
pub(crate) use segment::file_size_limit;
pub use span::Span;
pub use view::View;
pub use window::WindowKind;
