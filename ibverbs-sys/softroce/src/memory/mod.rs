//! Memory that the device may touch: regions and windows by their keys, and the copies from and to
//! them. The program's memory is touched in `copy` alone, or as a word that it names, and by the kernel where
//! `kernel` asks it to; all checks but that of a word's alignment are outside of them.
//!
//! Memory that the device hands out for regions ([`Arena`]) lies in a file, of which `segment` makes the
//! mappings here, and peers of the same host can map it as well. What they have to be told of bytes is a
//! [`Place`] and the arena's descriptor: [`Span::place`] of a region's, [`Registry::place`] by its key, and
//! [`Arena::find`] with [`Block::place`] by an address.
//!
//! The interface in `peers` is for those processes of the host that reach regions and windows by themselves.

mod access;
mod arena;
mod carry;
pub(crate) mod copy;
mod device;
mod entries;
mod extents;
mod guarded;
mod kernel;
mod mapping;
mod peers;
mod piece;
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
pub use arena::{Arena, Block, Place};
pub use device::DeviceMemory;
pub(crate) use kernel::forget;
pub use mapping::is_mapped;
pub(crate) use peers::{FilePlace, Peers, Published};
pub(crate) use piece::Piece;
pub use region::{RegionAttributes, RegionChange};
pub(crate) use registry::Regions;
pub use registry::Registry;
pub(crate) use segment::file_size_limit;
pub use span::Span;
pub use view::View;
pub use window::WindowKind;
