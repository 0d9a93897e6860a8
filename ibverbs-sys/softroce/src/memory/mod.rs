//! Memory that the device may touch: regions and windows by their keys, and the copies from and to
//! them. The program's memory is touched in one file, [`copy`]; all checks are outside it.

mod access;
mod copy;
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
