//! Checks of send requests before they are posted.

use super::elements::ElementList;
use super::queue_pair::QueuePairHandle;
use crate::error::{Error, Result};
use crate::queue_pair::{Description, Operation, SendFlags, Target, Transport};

/// Number of bytes that an atomic operation reads and writes.
pub(super) const ATOMIC: u64 = size_of::<u64>() as u64;

/// Returns an error if the request contains a mistake that some drivers do not detect, for example
/// a missing destination or an atomic of a wrong length.
#[inline]
pub(super) fn check(
    list: &ElementList,
    request: &Description,
    queue_pair: &QueuePairHandle,
) -> Result<()> {
    let limits = queue_pair.sizes();
    list.checked(limits.send_elements)?;
    let connected = queue_pair.kind() == Transport::ReliableConnected;
    if !connected || request.target != Target::Peer {
        check_target(request, queue_pair)?;
    }
    if let Some(missing) = missing(request.operation, queue_pair) {
        return Err(missing);
    }
    if !list.is_writable() && request.operation.writes_memory() {
        return Err(Error::NotWritable);
    }
    let inline = request.flags.contains(SendFlags::INLINE);
    match request.operation {
        Operation::Send { .. } | Operation::Write { .. } | Operation::SendWithInvalidate { .. } => {
            if inline {
                check_inline(list, limits.inline_data)?;
            }
            return Ok(());
        }
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => {
            let address = request.remote.address;
            if list.bytes() != ATOMIC || !address.is_multiple_of(ATOMIC) {
                return Err(no_atomic(list.bytes(), address));
            }
        }
        Operation::AtomicWrite { .. } => {
            let address = request.remote.address;
            if !address.is_multiple_of(ATOMIC) {
                return Err(no_atomic(ATOMIC, address));
            }
        }
        Operation::Read
        | Operation::Segmented { .. }
        | Operation::Invalidate { .. }
        | Operation::Window { .. }
        | Operation::Flush { .. } => {}
    }
    if inline {
        // Soft-RoCE would use the content of the memory as the list of elements to write to.
        let reason = "only sends and writes carry data that is copied";
        return Err(Error::invalid("inline request", reason));
    }
    Ok(())
}

/// Checks that the queue pair's type supports the operation, and that the request has a destination
/// if the type needs one: drivers dereference the address handle of a datagram without a check.
#[cold]
fn check_target(request: &Description, queue_pair: &QueuePairHandle) -> Result<()> {
    use Operation as op;
    let kind = queue_pair.kind();
    // The table is from the man page of ibv_post_send.
    let fits = match request.operation {
        op::Send { immediate: None } => kind != Transport::XrcTarget,
        op::Send { .. } => !matches!(kind, Transport::XrcTarget | Transport::RawPacket),
        op::SendWithInvalidate { .. }
        | op::Write { .. }
        | op::Invalidate { .. }
        | op::Window { .. } => matches!(
            kind,
            Transport::ReliableConnected | Transport::UnreliableConnected | Transport::XrcInitiator
        ),
        op::Segmented { .. } => matches!(kind, Transport::Datagram | Transport::RawPacket),
        op::Read
        | op::CompareAndSwap { .. }
        | op::FetchAndAdd { .. }
        | op::AtomicWrite { .. }
        | op::Flush { .. } => {
            matches!(kind, Transport::ReliableConnected | Transport::XrcInitiator)
        }
    };
    if !fits {
        let reason = format!(
            "{kind} queue pairs have no {}",
            request.operation.described()
        );
        return Err(Error::invalid("request", reason));
    }
    let wanted = match (kind, request.target) {
        (Transport::Datagram, Target::Datagram { .. })
        | (Transport::XrcInitiator, Target::SharedQueue { .. })
        | (
            Transport::ReliableConnected | Transport::UnreliableConnected | Transport::RawPacket,
            Target::Peer,
        ) => return Ok(()),
        (Transport::XrcInitiator, Target::Peer)
            if matches!(request.operation, op::Invalidate { .. } | op::Window { .. }) =>
        {
            return Ok(());
        }
        // The drivers of vendor-specific types may dereference the address handle, so a destination
        // is required.
        (Transport::Driver | Transport::Unknown(_), Target::Datagram { .. }) => return Ok(()),
        (Transport::Datagram | Transport::Driver | Transport::Unknown(_), _) => {
            "it needs a destination: see `SendRequest::to`"
        }
        (Transport::XrcInitiator, _) => {
            "it needs a shared receive queue of the peer: see `SendRequest::remote_shared_queue`"
        }
        _ => "it has a destination, and the queue pair is connected",
    };
    Err(Error::invalid(
        "request",
        format!("{wanted} ({kind} queue pair)"),
    ))
}

/// Returns an error if the queue pair was created without support for `operation`, else `None`.
#[inline]
fn missing(operation: Operation, queue_pair: &QueuePairHandle) -> Option<Error> {
    let made_for = match queue_pair.as_extended() {
        Some(_) => queue_pair.operations().contains(operation.needs()),
        // `ibv_post_send` supports all operations except these.
        None => !matches!(
            operation,
            Operation::AtomicWrite { .. } | Operation::Flush { .. }
        ),
    };
    if made_for {
        return None;
    }
    Some(not_made_for(operation, queue_pair))
}

#[cold]
fn not_made_for(operation: Operation, queue_pair: &QueuePairHandle) -> Error {
    let what = match operation {
        Operation::AtomicWrite { .. } => {
            "atomic writes on this queue pair, which was not made for them"
        }
        Operation::Flush { .. } => "flushes on this queue pair, which was not made for them",
        Operation::Segmented { .. } => "segmentation on this queue pair, which was not made for it",
        _ => "the operation on this queue pair, which was not made for it",
    };
    let device = queue_pair.domain().context().name().to_owned();
    Error::Unsupported { what, device }
}

/// Returns an error if this process cannot read the data of an inline request, or if the data is
/// longer than `limit` bytes.
#[inline]
fn check_inline(list: &ElementList, limit: u32) -> Result<()> {
    if list.is_mapped() && list.bytes() <= u64::from(limit) {
        return Ok(());
    }
    Err(not_inline(list, limit))
}

#[cold]
fn not_inline(list: &ElementList, limit: u32) -> Error {
    let reason = if list.is_mapped() {
        let bytes = list.bytes();
        format!("{bytes} bytes are more than the queue pair's limit of {limit}")
    } else {
        "its memory has no address in this process, or another one there".to_owned()
    };
    Error::invalid("inline request", reason)
}

#[cold]
fn no_atomic(bytes: u64, address: u64) -> Error {
    if bytes == ATOMIC {
        let reason = format!("{address:#x} is not a multiple of 8");
        Error::invalid("remote address of an atomic", reason)
    } else {
        let reason = format!("{bytes} bytes, and an atomic brings 8");
        Error::invalid("memory of an atomic", reason)
    }
}
