//! The tables of the port: the GIDs, and the single partition key.

use std::net::Ipv6Addr;
use std::ptr;

use ibverbs_sys::{ibv_context, ibv_gid, ibv_gid_entry, ibv_gid_type};
use libc::{c_int, c_uint, size_t, ssize_t};

use super::query::is_port;
use super::{forward, minus_one, number, open, verb};
use crate::fault::Verb;
use crate::net;
use crate::nic::Nic;

/// The default partition key with full membership (IBTA 10.9.1.2), the only one of the port.
pub(crate) const PARTITION_KEY: u16 = 0xffff;

/// Stores an entry of the GID table in `gid` (`ibv_query_gid(3)`). Stores zeroes if the entry is
/// empty.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(context, ibv_query_gid(context, port_num, index, gid) else minus_one(libc::EOPNOTSUPP));
    };
    verb(Verb::QueryGid, minus_one, || {
        // SAFETY: the context belongs to this device, as `forward!` has checked.
        let nic = unsafe { open::nic(context) };
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let found = match find(nic, port_num.into(), index) {
            Ok(found) => found,
            // As for other devices, an empty entry is read as zeroes.
            Err(libc::ENODATA) => Ipv6Addr::UNSPECIFIED,
            Err(errno) => return minus_one(errno),
        };
        // SAFETY: the C API requires `gid` to be valid for writes.
        unsafe {
            gid.write(ibv_gid {
                raw: found.octets(),
            });
        };
        0
    })
}

/// Stores the type of a port's GID in `gid_type`, for `ibv_devinfo`. All GIDs of the softroce
/// device have the type RoCE version 2.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    /// Value of `IBV_GID_TYPE_SYSFS_ROCE_V2`, the type of GIDs for RoCE version 2.
    const ROCE_V2: c_uint = 1;
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(context, ibv_query_gid_type(context, port_num, index, gid_type) else minus_one(libc::EOPNOTSUPP));
    };
    verb(Verb::QueryGid, minus_one, || {
        // SAFETY: the context belongs to this device, as `forward!` has checked.
        let nic = unsafe { open::nic(context) };
        if let Err(errno) = find(nic, port_num.into(), index) {
            return minus_one(errno);
        }
        // SAFETY: the C API requires `gid_type` to be valid for writes.
        unsafe { gid_type.write(ROCE_V2) };
        0
    })
}

/// Stores an entry of the GID table with its type and interface in `entry` (`ibv_query_gid_ex(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: size_t,
) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(
            context,
            _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, entry_size)
        );
    }
    verb(Verb::QueryGid, number, || {
        // SAFETY: the context belongs to this device, as `forward!` has checked.
        let nic = unsafe { open::nic(context) };
        let found = find(nic, port_num, gid_index);
        if found == Err(libc::EINVAL) || flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return libc::EINVAL;
        }
        let found = match found {
            Ok(found) => found,
            Err(errno) => return errno,
        };
        // SAFETY: the C API requires room for an entry of `entry_size` bytes.
        unsafe { write_entry(entry, entry_size, nic, gid_index, found) };
        0
    })
}

/// Stores the entries of the GID table that are not empty, and returns their number
/// (`ibv_query_gid_table(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    entry_size: size_t,
) -> ssize_t {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(
            context,
            _ibv_query_gid_table(context, entries, max_entries, flags, entry_size)
        );
    }
    verb(Verb::QueryGid, negative, || {
        // SAFETY: the context belongs to this device, as `forward!` has checked.
        let nic = unsafe { open::nic(context) };
        let gids: Vec<(u8, Ipv6Addr)> = nic.gids().collect();
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() || gids.len() > max_entries {
            return negative(libc::EINVAL);
        }
        for (place, (index, gid)) in gids.iter().enumerate() {
            // SAFETY: the C API requires room for `max_entries` entries of `entry_size` bytes.
            unsafe {
                let entry = entries.byte_add(place * entry_size);
                write_entry(entry, entry_size, nic, (*index).into(), *gid);
            }
        }
        gids.len().cast_signed()
    })
}

/// Stores an entry of the partition key table in `pkey`, in network byte order
/// (`ibv_query_pkey(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(context, ibv_query_pkey(context, port_num, index, pkey) else minus_one(libc::EOPNOTSUPP));
    };
    verb(Verb::QueryPkey, minus_one, || {
        if !is_port(port_num.into()) || index != 0 {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: the C API requires `pkey` to be valid for writes.
        unsafe { pkey.write(PARTITION_KEY.to_be()) };
        0
    })
}

/// Returns the index of a partition key in the port's table, or -1 if the table does not contain
/// the key (`ibv_get_pkey_index(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(context, ibv_get_pkey_index(context, port_num, pkey) else minus_one(libc::EOPNOTSUPP));
    };
    verb(Verb::QueryPkey, minus_one, || {
        if is_port(port_num.into()) && u16::from_be(pkey) == PARTITION_KEY {
            return 0;
        }
        minus_one(libc::EINVAL)
    })
}

fn negative(errno: c_int) -> ssize_t {
    -(errno as ssize_t)
}

/// Returns the GID with the index `index` in the GID table of the port `port` of `nic`. Fails with
/// `EINVAL` if there is no such port or index, and with `ENODATA` if the entry is empty.
fn find(nic: &Nic, port: u32, index: u32) -> Result<Ipv6Addr, c_int> {
    let index = index as usize;
    if !is_port(port) || index >= net::GIDS {
        return Err(libc::EINVAL);
    }
    nic.gid(index).ok_or(libc::ENODATA)
}

/// Writes the GID `gid` to `entry`, a GID table entry of the C ABI. `index` is the index of the
/// GID. If `size` is larger than the entry, zeroes the remaining bytes.
///
/// # Safety
/// `entry` must be valid for writes of `size` bytes, and `size` must be at least the size of an
/// entry.
unsafe fn write_entry(
    entry: *mut ibv_gid_entry,
    size: usize,
    nic: &Nic,
    index: u32,
    gid: Ipv6Addr,
) {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe {
        ptr::write_bytes(entry.cast::<u8>(), 0, size);
        entry.write(ibv_gid_entry {
            gid: ibv_gid { raw: gid.octets() },
            gid_index: index,
            port_num: 1,
            gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
            ndev_ifindex: nic.interface(index as usize),
        });
    }
}
