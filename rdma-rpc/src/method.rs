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
}
