//! Resolution of names to addresses, by `rdma_getaddrinfo`.

use std::ffi::{CStr, CString, c_int};
use std::mem;
use std::net::SocketAddr;
use std::ptr;
use std::slice;

use ibverbs_sys as sys;

use super::socket_address;
use crate::cm::ConnectionError;
use crate::error::{Errno, Error, Result};

/// The parameters of an address query by `rdma_getaddrinfo`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InfoQuery<'a> {
    pub(crate) node: Option<&'a str>,
    pub(crate) service: Option<&'a str>,
    pub(crate) flags: u32,
    pub(crate) space: sys::rdma_port_space,
    pub(crate) kind: sys::ibv_qp_type,
}

/// A copy of one address entry that `rdma_getaddrinfo` returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawInfo {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) space: sys::rdma_port_space,
    pub(crate) canonical_name: Option<String>,
    pub(crate) connect_data: Vec<u8>,
}

/// Resolves a name by `rdma_getaddrinfo`, and returns a copy of every address entry that was found.
pub(crate) fn address_info(query: &InfoQuery<'_>) -> Result<Vec<RawInfo>> {
    let (node, service) = (
        c_string("node", query.node)?,
        c_string("service", query.service)?,
    );
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut hints: sys::rdma_addrinfo = unsafe { mem::zeroed() };
    hints.ai_flags = query.flags as c_int;
    hints.ai_port_space = query.space.0 as c_int;
    hints.ai_qp_type = query.kind.0 as c_int;
    let mut first = ptr::null_mut();
    let returned =
        // SAFETY: the texts end with NUL; the hints and the place for the answer are valid.
        unsafe { sys::rdma_getaddrinfo(pointer(&node) as _, pointer(&service) as _, &hints, &mut first) };
    if returned != 0 {
        return Err(error(query, returned));
    }
    let mut answers = Vec::new();
    let mut next = first;
    // SAFETY: the answer is a list of valid entries that ends with a null pointer.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the entry's pointers are null, or point to data of the lengths in its fields.
        answers.push(unsafe { copied(entry) });
        next = entry.ai_next;
    }
    // SAFETY: the call returned the list, which is freed once, here; all of it was copied.
    unsafe { sys::rdma_freeaddrinfo(first) };
    Ok(answers)
}

/// Copies one entry of the list that `rdma_getaddrinfo` returned.
///
/// # Safety
///
/// `entry` must have been created by `rdma_getaddrinfo`.
unsafe fn copied(entry: &sys::rdma_addrinfo) -> RawInfo {
    let name = |pointer: *const std::ffi::c_char| {
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the caller guarantees a text of `rdma_getaddrinfo`, which ends with NUL.
        let text = unsafe { CStr::from_ptr(pointer) };
        Some(text.to_string_lossy().into_owned())
    };
    let connect_data = if entry.ai_connect.is_null() {
        Vec::new()
    } else {
        // SAFETY: the caller guarantees an entry of `rdma_getaddrinfo`; it has this many bytes.
        unsafe { slice::from_raw_parts(entry.ai_connect.cast::<u8>(), entry.ai_connect_len) }
            .to_vec()
    };
    // SAFETY: the caller guarantees an entry of `rdma_getaddrinfo`; its addresses are null or
    // whole.
    let (source, destination) = unsafe {
        (
            socket_address::from_raw(entry.ai_src_addr),
            socket_address::from_raw(entry.ai_dst_addr),
        )
    };
    RawInfo {
        source,
        destination,
        space: sys::rdma_port_space(entry.ai_port_space as _),
        canonical_name: name(entry.ai_dst_canonname).or_else(|| name(entry.ai_src_canonname)),
        connect_data,
    }
}

/// Returns the error of a failed `rdma_getaddrinfo`. `returned` is the value that the call
/// returned: -1 with the error number in `errno`, or an error number of `getaddrinfo`.
fn error(query: &InfoQuery<'_>, returned: c_int) -> Error {
    let errno = Errno::last();
    let node = query.node.unwrap_or("any address");
    let object = match query.service {
        Some(service) => format!("{node}, service {service}"),
        None => node.to_owned(),
    };
    if returned == -1 || returned == libc::EAI_SYSTEM {
        return match errno.0 {
            libc::ENODEV | libc::ENOENT | libc::ENOSYS | libc::EPERM => {
                ConnectionError::NoManager { errno }.into()
            }
            _ => Error::verb("rdma_getaddrinfo", object, errno),
        };
    }
    // SAFETY: the function accepts any number, and returns a static text that ends with NUL.
    let reason = unsafe { CStr::from_ptr(libc::gai_strerror(returned)) };
    ConnectionError::UnknownName {
        name: object,
        reason: reason.to_string_lossy().into_owned(),
    }
    .into()
}

fn c_string(what: &'static str, text: Option<&str>) -> Result<Option<CString>> {
    text.map(CString::new)
        .transpose()
        .map_err(|_| Error::invalid(what, "it has a NUL character inside"))
}
