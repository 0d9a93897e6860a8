#![forbid(unsafe_code)]
//! Fault injection, to test how a program handles faults: packets that are lost, duplicated,
//! delayed, reordered or corrupted; verbs that fail; asynchronous events; a link that goes down.
//! Faults are configured by this interface or by the variables of [`config`](crate::config).

mod network;
#[cfg(any(test, feature = "sim"))]
pub mod panics;
#[cfg(any(test, feature = "sim"))]
pub mod stops;
mod verb;

use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;

use network::FaultGenerator;

pub use network::NetworkFaults;
pub(crate) use network::PacketFaults;
pub use verb::{Errno, Verb};

/// A failure of a verb that [`Faults::fail`] sets: the verb, the call that must fail, and the
/// error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The verb whose call fails.
    pub verb: Verb,
    /// Number of the call that fails, counted from the time when the failure is set. The next call
    /// has the number 1.
    pub call: u64,
    /// Number of the error (errno) with which the call of the verb fails.
    pub errno: Errno,
}

/// Receiver of the asynchronous events of the device and its port: an open device context.
pub(crate) trait Listener: Send + Sync {
    /// Queues the asynchronous event `kind` for the program that opened this context. The event
    /// concerns the device or its port.
    fn raise(&self, kind: ibv_event_type);
}

/// Faults that are injected into a device: verb calls that fail, lost or damaged packets, and a
/// link that is down. [`faults()`](crate::faults) returns the faults of this process's device.
pub struct Faults {
    /// Set while failures of verbs are pending, or after the device has failed. While it is not
    /// set, the call of a verb makes no further check.
    failing: AtomicBool,
    failures: Mutex<Vec<Failure>>,
    /// Set while packet faults are configured. While it is not set, packets are sent without
    /// drawing random numbers.
    careless: AtomicBool,
    accidents: Mutex<FaultGenerator>,
    link_up: AtomicBool,
    /// Set after the device has failed: the link stays down, and many verbs fail.
    device_failed: AtomicBool,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

impl Faults {
    /// Creates the faults of a new device: the packet faults `network`, and the verb failures
    /// `failures`.
    pub(crate) fn new(network: NetworkFaults, failures: Vec<Failure>) -> Self {
        Self {
            failing: AtomicBool::new(!failures.is_empty()),
            failures: Mutex::new(failures),
            careless: AtomicBool::new(network.any()),
            accidents: Mutex::new(FaultGenerator::new(network)),
            link_up: AtomicBool::new(true),
            device_failed: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
        }
    }

    /// Makes a later call of a verb fail, as `failure` describes. Several failures may be set. Each
    /// failure stays pending until the call that it selects is made.
    pub fn fail(&self, failure: Failure) {
        let mut failures = self.failures.lock();
        failures.push(failure);
        self.failing.store(true, Ordering::Relaxed);
    }

    /// Cancels all verb failures that have not occurred yet. The failures were set by
    /// [`fail`](Self::fail) or by the configuration.
    pub fn forget_failures(&self) {
        let mut failures = self.failures.lock();
        failures.clear();
        self.set_failing(&failures);
    }

    /// Counts a call of the verb `verb`. Returns an error if this call must fail, because a failure
    /// was set ([`Faults::fail`] or the configuration) or because the device has failed.
    #[inline]
    pub(crate) fn check(&self, verb: Verb) -> Result<(), Errno> {
        if self.failing.load(Ordering::Relaxed) {
            self.count_down(verb)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn count_down(&self, verb: Verb) -> Result<(), Errno> {
        let mut failures = self.failures.lock();
        let mut failed = None;
        failures.retain_mut(|failure| {
            if failure.verb != verb {
                return true;
            }
            failure.call = failure.call.saturating_sub(1);
            if failure.call == 0 {
                failed = Some(failure.errno);
            }
            failure.call > 0
        });
        self.set_failing(&failures);
        if verb.fails_with_device() && self.device_has_failed() {
            failed = Some(Errno(libc::EIO));
        }
        failed.map_or(Ok(()), Err)
    }

    fn set_failing(&self, failures: &[Failure]) {
        self.failing.store(!failures.is_empty(), Ordering::SeqCst);
        // `fail_device` stores the two flags in the opposite order.
        if self.device_has_failed() {
            self.failing.store(true, Ordering::SeqCst);
        }
    }

    /// Makes the device fail permanently: takes the link down without an event, and makes verbs
    /// that need the device fail. Takes no lock. Returns `true` on the first call only.
    pub(crate) fn fail_device(&self) -> bool {
        let first = !self.device_failed.swap(true, Ordering::SeqCst);
        self.link_up.store(false, Ordering::SeqCst);
        self.failing.store(true, Ordering::SeqCst);
        first
    }

    /// Returns whether the device has permanently failed.
    pub(crate) fn device_has_failed(&self) -> bool {
        self.device_failed.load(Ordering::SeqCst)
    }

    /// Sets the faults of packets that are sent from now on. Restarts the random numbers from the
    /// seed, so that a test can repeat a sequence of faults.
    pub fn set_network(&self, faults: NetworkFaults) {
        let mut accidents = self.accidents.lock();
        *accidents = FaultGenerator::new(faults);
        self.careless.store(faults.any(), Ordering::Relaxed);
    }

    /// Returns the faults that are injected into packets at present.
    pub fn network(&self) -> NetworkFaults {
        self.accidents.lock().faults()
    }

    /// Decides at random which faults are injected into the next packet, which has `len` bytes from
    /// BTH to ICRC. Returns `None` if no packet faults are configured.
    pub(crate) fn packet_faults(&self, len: usize) -> Option<PacketFaults> {
        if !self.careless.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.accidents.lock().packet_faults(len))
    }

    /// Decides at random which of `count` consecutive packets (at most 64) are dropped. Returns one
    /// bit per packet, the lowest bit for the first packet. A set bit means that the packet is
    /// dropped. Each packet has `len` bytes from BTH to ICRC.
    ///
    /// Returns `None`, and draws no random numbers, if the link is down, or if packets are to be
    /// duplicated, reordered or corrupted as well. The packets must then be sent one by one.
    pub(crate) fn lost_in_run(&self, len: usize, count: usize) -> Option<u64> {
        if !self.link_is_up() {
            return None;
        }
        if !self.careless.load(Ordering::Relaxed) {
            return Some(0);
        }
        let mut accidents = self.accidents.lock();
        let faults = accidents.faults();
        if [faults.duplicate, faults.reorder, faults.corrupt] != [0.0; 3] {
            return None;
        }
        let mut lost = 0;
        for packet in 0..count {
            lost |= u64::from(accidents.packet_faults(len).lost) << packet;
        }
        Some(lost)
    }

    /// Returns the configured latency: the time for which the device holds back each packet before
    /// it sends the packet.
    pub(crate) fn latency(&self) -> Duration {
        if !self.careless.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        self.accidents.lock().faults().latency
    }

    /// Returns whether messages may be transferred without packets, for example through shared
    /// memory. The result is `true` while the device's link is up and no packet faults are
    /// configured.
    pub(crate) fn allows_other_paths(&self) -> bool {
        !self.careless.load(Ordering::Relaxed) && self.link_is_up()
    }

    /// Takes the link up if `up` is set, or down if `up` is not set. While the link is down, no
    /// packets are sent or received. A change raises `IBV_EVENT_PORT_ERR` or
    /// `IBV_EVENT_PORT_ACTIVE`. The link of a failed device stays down.
    pub fn set_link(&self, up: bool) {
        let before = self.link_up.swap(up, Ordering::SeqCst);
        if self.device_has_failed() {
            // `fail_device` stores the two flags in the opposite order.
            self.link_up.store(false, Ordering::SeqCst);
        } else if before != up {
            self.raise(if up {
                ibv_event_type::IBV_EVENT_PORT_ACTIVE
            } else {
                ibv_event_type::IBV_EVENT_PORT_ERR
            });
        }
    }

    /// Returns whether the link is up, that is, whether the port is active.
    pub fn link_is_up(&self) -> bool {
        self.link_up.load(Ordering::Relaxed)
    }

    /// Raises the asynchronous event `kind` in every open context. The event concerns the device or
    /// its port.
    pub fn raise(&self, kind: ibv_event_type) {
        // The list is copied, because a listener may be added or removed during the calls.
        let listeners = self.listeners.lock().clone();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.raise(kind);
        }
    }

    /// Adds `listener` to the receivers of the device's asynchronous events. The listener receives
    /// all later events, until it is dropped.
    pub(crate) fn subscribe(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("failures", &self.failures)
            .field("network", &self.network())
            .field("link_up", &self.link_up)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn no_faults() -> Faults {
        Faults::new(NetworkFaults::default(), Vec::new())
    }

    #[derive(Default)]
    struct ReceivedEvents(Mutex<Vec<ibv_event_type>>);

    impl Listener for ReceivedEvents {
        fn raise(&self, kind: ibv_event_type) {
            self.0.lock().push(kind);
        }
    }

    #[test]
    fn the_nth_call_of_a_verb_fails_once() {
        let faults = no_faults();
        assert_eq!(faults.check(Verb::RegMr), Ok(()));
        faults.fail(Failure {
            verb: Verb::RegMr,
            call: 2,
            errno: Errno(libc::ENOMEM),
        });
        assert_eq!(faults.check(Verb::RegMr), Ok(()));
        assert_eq!(faults.check(Verb::DeregMr), Ok(()));
        assert_eq!(faults.check(Verb::RegMr), Err(Errno(libc::ENOMEM)));
        assert_eq!(faults.check(Verb::RegMr), Ok(()));
    }

    #[test]
    fn failures_of_several_verbs_are_counted_separately_and_cleared() {
        let faults = no_faults();
        for call in [1, 3] {
            faults.fail(Failure {
                verb: Verb::PostSend,
                call,
                errno: Errno(libc::EINVAL),
            });
        }
        let answers: Vec<bool> = (0..4)
            .map(|_| faults.check(Verb::PostSend).is_err())
            .collect();
        assert_eq!(answers, [true, false, true, false]);
        faults.fail(Failure {
            verb: Verb::PostSend,
            call: 1,
            errno: Errno(libc::EINVAL),
        });
        faults.forget_failures();
        assert_eq!(faults.check(Verb::PostSend), Ok(()));
    }

    #[test]
    fn a_failed_device_stays_failed() {
        let faults = no_faults();
        assert!(faults.fail_device());
        assert!(!faults.fail_device());
        faults.set_link(true);
        faults.forget_failures();
        assert!(!faults.link_is_up() && !faults.allows_other_paths());
        for verb in [Verb::CreateQp, Verb::RegMr, Verb::OpenDevice] {
            assert_eq!(faults.check(verb), Err(Errno(libc::EIO)));
        }
        for verb in [Verb::DestroyQp, Verb::PollCq, Verb::PostSend] {
            assert_eq!(faults.check(verb), Ok(()));
        }
        faults.fail(Failure {
            verb: Verb::PollCq,
            call: 1,
            errno: Errno(libc::EINTR),
        });
        assert_eq!(faults.check(Verb::PollCq), Err(Errno(libc::EINTR)));
        assert!(faults.check(Verb::RegMr).is_err());
    }

    #[test]
    fn a_change_of_the_link_is_reported_once() {
        let faults = no_faults();
        let told = Arc::new(ReceivedEvents::default());
        let listener: Weak<ReceivedEvents> = Arc::downgrade(&told);
        faults.subscribe(listener);
        faults.set_link(true);
        faults.set_link(false);
        faults.set_link(false);
        assert!(!faults.link_is_up());
        faults.set_link(true);
        assert_eq!(
            *told.0.lock(),
            [
                ibv_event_type::IBV_EVENT_PORT_ERR,
                ibv_event_type::IBV_EVENT_PORT_ACTIVE
            ]
        );
        // A dropped listener gets no event and is removed.
        drop(told);
        faults.raise(ibv_event_type::IBV_EVENT_SM_CHANGE);
    }

    #[test]
    fn without_configured_faults_no_fault_is_drawn() {
        let faults = no_faults();
        assert_eq!(faults.packet_faults(100), None);
        faults.set_network(NetworkFaults {
            loss: 1.0,
            ..NetworkFaults::default()
        });
        assert!(
            faults
                .packet_faults(100)
                .is_some_and(|packet_faults| packet_faults.lost)
        );
        faults.set_network(NetworkFaults::default());
        assert_eq!(faults.packet_faults(100), None);
    }

    #[test]
    fn verbs_have_distinct_names_and_are_found_by_name() {
        for &verb in Verb::ALL {
            assert_eq!(Verb::named(verb.name()), Some(verb));
            assert_eq!(Verb::named(&format!("ibv_{}", verb.name())), Some(verb));
        }
        assert_eq!(Verb::named("ibv_"), None);
        assert_eq!(Errno::named("ENOMEM"), Some(Errno(libc::ENOMEM)));
        assert_eq!(Errno::named("0"), None);
    }
}
