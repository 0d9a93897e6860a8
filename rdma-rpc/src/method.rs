//! [`MethodInfo`]: the number and the name of a method, which generated code defines.

/// Number, name and kind of a method.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    /// Number in requests: a hash of the name, unless the service sets it.
    pub id: u32,
    /// Name of the service and of the method: `"Store.get"`.
    pub name: &'static str,
    /// Set if the caller sends a stream.
    pub has_input: bool,
    /// Set if the handler sends a stream.
    pub has_output: bool,
    /// Set if the method has no response.
    pub is_one_way: bool,
    /// Set if the method is executed at most once.
    pub is_once: bool,
}

/// Returns the number of a method whose service does not set it: the 32-bit FNV-1a hash of its
/// name.
pub(crate) fn number_of(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
