//! Memory that the device may touch: regions and windows by their keys, and the copies from and to
//! them. The program's memory is touched in `copy` alone, and by the kernel where `kernel`
//! asks it to; all checks are outside of them.

mod access;
mod copy;
mod kernel;
mod mapping;
mod region;
mod registry;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod window;

pub use access::{region_access, window_access};
pub use copy::{DeviceMemory, Span};
pub use mapping::is_mapped;
pub use region::{RegionAttributes, RegionChange};
pub use registry::Registry;
pub use view::View;
pub use window::WindowKind;
