//! A test of whether a device checks the bounds of memory windows.
//!
//! IBTA volume 1, 10.6.7, requires this check. Soft-RoCE of Linux 6.1 checks the bounds of the
//! *region* that the window is bound to, so a peer with the key of a window can also access the
//! rest of the region. On such a device, leasing a part of a region to peers would be unsound.
//! Neither the name nor the attributes of a device show whether the device checks bounds, so
//! [`are_checked`] tests the device.

use std::thread;
use std::time::{Duration, Instant};

use super::{AccessFlags, Buffer, RemoteMemory, WindowLease, WindowType};
use crate::completion::{WorkCompletion, WorkStatus};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{ConnectOptions, QueuePair, SendRequest};

/// Size in bytes of the memory window that the test binds, and of the memory before and after the
/// window. The size is less than a page, because the device must check bounds to the byte.
const LEN: usize = 64;

/// Time limit of each request of the test. The two queue pairs are on the same device, so a working
/// device needs far less. The test fails if a request exceeds the limit.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Context {
    /// Returns whether the device limits the access through a memory window of type `kind` to the
    /// bytes of the window. IBTA volume 1, 10.6.7, requires these limits, but some devices give
    /// access to the whole registration.
    ///
    /// The first call for each open device and type tests the device with temporary queue pairs,
    /// and blocks for the duration of the test: usually milliseconds, at most about 30 seconds.
    /// Later calls return the result of the test. [`Buffer::lease`] performs the same test.
    ///
    /// ```
    /// # use rdma_core::Context;
    /// use rdma_core::memory::WindowType;
    ///
    /// let context = Context::open_default()?;
    /// if context.enforces_window_bounds(WindowType::Two)? {
    ///     println!("parts of a registration can be leased");
    /// }
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no windows of this type, or the error that
    /// prevented the test.
    pub fn enforces_window_bounds(&self, kind: WindowType) -> Result<bool> {
        are_checked(self, kind)
    }
}

/// Returns whether a memory window of type `kind` grants access only to the bytes of the window.
/// The first call for each open device and window type tests the device. Later calls return the
/// stored result.
///
/// The test runs in the same context, because the program may have dropped the privilege to open
/// devices. For each side of the window (start and end), the test creates two queue pairs, makes
/// them fail with a remote access error, and destroys them.
///
/// # Errors
///
/// The error that prevented the test from finishing. The next call repeats the test.
pub(super) fn are_checked(context: &Context, kind: WindowType) -> Result<bool> {
    let known = context.handle().window_bounds(kind);
    if let Some(&known) = known.get() {
        return Ok(known);
    }
    let are_checked = ends_at(context, kind, After)? && ends_at(context, kind, Before)?;
    Ok(*known.get_or_init(|| are_checked))
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Before,
    After,
}
use Side::{After, Before};

/// Returns whether the device refuses a peer's write that lies half inside and half outside of a
/// memory window. The write crosses the start of the window for `Side::Before`, and the end of the
/// window for `Side::After`.
fn ends_at(context: &Context, kind: WindowType, side: Side) -> Result<bool> {
    let domain = context.protection_domain()?;
    let (peer, owner) = connected(&domain)?;
    let trial = TrialWindow::bind(&domain, &owner, kind)?;
    let window = trial.window;
    write(&peer, &domain, window)?.result()?;
    // The write is half inside of the window: a device that checks only the start or only the end
    // of an access does not enforce the bounds.
    let distance = LEN as u64 / 2;
    let beyond = RemoteMemory {
        address: match side {
            Before => window.address.wrapping_sub(distance),
            After => window.address.wrapping_add(distance),
        },
        ..window
    };
    is_refused(&write(&peer, &domain, beyond)?)
}

/// Returns two queue pairs of `domain` that are connected to each other.
pub(super) fn connected(domain: &ProtectionDomain) -> Result<(QueuePair, QueuePair)> {
    let build = || domain.queue_pair().send_requests(2).build();
    let (left, right) = (build()?, build()?);
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    Ok((
        left.connect(&to_right, &options)?,
        right.connect(&to_left, &options)?,
    ))
}

/// A memory window for tests, bound to the middle third of a registration. Peers may write to the
/// window.
#[derive(Debug)]
pub(super) struct TrialWindow {
    pub(super) window: RemoteMemory,
    _lease: WindowLease,
    /// Memory before and after the window. The test uses this memory for nothing else, so peers may
    /// write to it.
    _around: [Buffer; 2],
}

impl TrialWindow {
    /// Binds a window of type `kind` to the middle third of newly registered memory, by a request
    /// of the queue pair `owner`. Waits until the window is bound.
    pub(super) fn bind(
        domain: &ProtectionDomain,
        owner: &QueuePair,
        kind: WindowType,
    ) -> Result<Self> {
        let registration = domain.registration().access(AccessFlags::WINDOW_BIND);
        let (before, rest) = registration.allocate(3 * LEN)?.split_at(LEN);
        let (inside, after) = rest.split_at(LEN);
        let window = domain.memory_window(kind)?;
        let lease = WindowLease::of_any_part(inside, window, AccessFlags::REMOTE_WRITE);
        let mut bindings = owner.send_queue::<()>();
        bindings
            .post_inline(lease.bind()?)
            .map_err(|refused| refused.error)?;
        let bound = completion(owner)?;
        bound.result()?;
        bindings.complete(&bound).for_each(drop);
        let window = lease
            .remote()
            .ok_or_else(|| Error::invalid("trial of a memory window", "it was not bound"))?;
        Ok(Self {
            window,
            _lease: lease,
            _around: [before, after],
        })
    }
}

/// Returns `true` if the write with the completion `ended` failed because the window does not
/// permit the write. Returns `false` if the write succeeded.
///
/// # Errors
///
/// The error of a write that failed for another reason.
pub(super) fn is_refused(ended: &WorkCompletion) -> Result<bool> {
    match ended.status() {
        WorkStatus::Success => Ok(false),
        WorkStatus::RemoteAccess => Ok(true),
        _ => ended.result().map(|()| false).map_err(Error::Work),
    }
}

/// Writes `LEN` bytes to the peer's memory `to`, waits until the write has ended, and returns the
/// completion of the write. The completion may have a failure status.
pub(super) fn write(
    queue_pair: &QueuePair,
    domain: &ProtectionDomain,
    to: RemoteMemory,
) -> Result<WorkCompletion> {
    let mut queue = queue_pair.send_queue::<Buffer>();
    let source = domain.allocate(LEN)?;
    queue.post(SendRequest::write(source, to))?;
    completion(queue_pair)
}

/// Waits for at most [`TIMEOUT`] until a send request of the queue pair completes, and returns the
/// completion of the request.
fn completion(queue_pair: &QueuePair) -> Result<WorkCompletion> {
    let begin = Instant::now();
    let mut room = [WorkCompletion::default()];
    loop {
        if let [completion] = queue_pair.send_completions().poll(&mut room)? {
            return Ok(*completion);
        }
        if begin.elapsed() > TIMEOUT {
            return Err(Error::TimedOut {
                what: "a request that tests a memory window",
                timeout: TIMEOUT,
            });
        }
        thread::yield_now();
    }
}
