//! [`MethodInfo`]: the constant that generated code defines for each method.

/// Number, name and properties of a method, which the client and the server use for its calls.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    /// Number of the method in requests: a hash of its name, unless the service sets a number.
    pub id: u32,
    /// Name of the service and of the method, for example `"Store.get"`.
    pub name: &'static str,
    /// Set if the caller sends a stream to the handler.
    pub has_input: bool,
    /// Set if the handler sends a stream to the caller.
    pub has_output: bool,
    /// Set if the method has no response.
    pub is_one_way: bool,
    /// Set if the server executes each call at most once.
    pub is_once: bool,
}

/// Returns the default number of a method: the 32-bit FNV-1a hash of its name.
pub(crate) fn number_of(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
