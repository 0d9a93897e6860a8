//! Implementations of the interfaces through which the engine and the queue pairs use the NIC.

use std::any::Any;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use ibverbs_sys::ibv_event_type;

use super::Nic;
use super::receiver::ReceivingThread;
use crate::counters::Tally;
use crate::engine::{self, ReceiveAttempt};
use crate::net::{self, Endpoints, SharedVolume};
use crate::proto::{Counter, Mtu, Path, Run, Time};
use crate::queue_pair::{self, HostPeer};
use crate::same_host::{CHECK_INTERVAL, HostPeers, Link};
use crate::{memory, receive};

impl engine::EngineTasks for Nic {
    fn receive(&self) -> ReceiveAttempt {
        match self.receive_and_run_timers(self.now(), ReceivingThread::Engine) {
            ReceiveAttempt::Contended => {
                self.refused.store(true, Ordering::Relaxed);
                // Either the thread that holds the lock sees the flag after it has released the
                // lock, or this thread finds the lock free.
                fence(Ordering::SeqCst);
                self.receive_and_run_timers(self.now(), ReceivingThread::Engine)
            }
            done => done,
        }
    }

    fn polled(&self) -> Option<Time> {
        let polled = self.polled.load(Ordering::Relaxed);
        (polled != 0).then(|| Time::from_nanos(polled))
    }

    fn endpoints(&self) -> Arc<Endpoints> {
        self.network.endpoints()
    }

    fn handle_events(&self) {
        if let Some(host_peers) = &self.host_peers {
            host_peers.handle_events();
        }
    }

    fn check_interval(&self, is_over: bool) -> Option<Duration> {
        let host_peers = self.host_peers.as_ref()?;
        if is_over {
            host_peers.end_check();
        }
        host_peers.is_channel_armed().then_some(CHECK_INTERVAL)
    }

    fn run_due(&self) {
        self.run_timers(self.now());
    }

    fn events_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.host_peers.as_ref()?.events_descriptor())
    }

    fn fall_asleep(&self) -> bool {
        (self.host_peers.as_ref()).is_none_or(|host_peers| host_peers.fall_asleep())
            && !self.owes_answers.load(Ordering::SeqCst)
    }

    fn wake_up(&self) {
        if let Some(host_peers) = &self.host_peers {
            host_peers.wake_up();
        }
    }

    fn host_changes(&self) -> Option<BorrowedFd<'_>> {
        self.network.host_changes()
    }

    fn handle_host_changes(&self) {
        let had_address = self.network.has_address();
        if self.network.update_from_host() {
            self.faults.raise(ibv_event_type::IBV_EVENT_GID_CHANGE);
            // Only a change of the addresses changes the link, which a test may have taken down.
            let has_address = self.network.has_address();
            if has_address != had_address {
                self.faults.set_link(has_address);
            }
        }
    }

    fn panicked(&self, panic: &(dyn Any + Send)) -> bool {
        Nic::panicked(self, panic)
    }
}

impl queue_pair::Adapter for Nic {
    fn memory(&self) -> &memory::Registry {
        &self.memory
    }

    fn shared_queues(&self) -> &receive::SharedQueueDirectory {
        &self.shared_queues
    }

    fn mtu(&self) -> Mtu {
        self.network.mtu()
    }

    fn gid(&self, index: u8) -> Option<Ipv6Addr> {
        self.network.gid(index.into())
    }

    fn can_send_on(&self, path: &Path) -> bool {
        self.network.can_send_on(path)
    }

    fn connect(&self, path: &Path, number: u32) {
        self.network.connect(path, number);
    }

    fn disconnect(&self, path: &Path, number: u32) {
        self.network.disconnect(path, number);
    }

    fn mtu_of(&self, gid: u8) -> Mtu {
        self.network.mtu_of(gid)
    }

    fn check_path_mtu(&self, path: &Path, number: u32, mtu: Mtu) {
        self.network.check_path_mtu(path, number, mtu);
    }

    fn receive_everywhere(&self) {
        self.network.receive_everywhere();
    }

    fn windows(&self, gid: u8, mtu: Mtu) -> RangeInclusive<u32> {
        self.network.windows(gid, mtu)
    }

    fn now(&self) -> Time {
        self.timers.now()
    }

    fn coarse_now(&self) -> Time {
        self.timers.coarse_now()
    }

    fn count(&self, counter: Counter, by: u64) {
        self.counters.count(counter, by);
    }

    fn tally(&self) -> Tally {
        self.counters.tally()
    }

    fn is_direct(&self) -> bool {
        self.direct && self.faults.allows_other_paths()
    }

    fn is_shared(&self) -> bool {
        self.faults.allows_other_paths()
    }

    fn link_to_peer(&self, path: &Path, number: u32) -> Option<Arc<Link>> {
        self.network.link(path, number)
    }

    fn host_peers(&self) -> Option<&HostPeers> {
        self.host_peers.as_deref()
    }

    fn host_peer(&self, path: &Path, number: u32) -> Option<HostPeer> {
        Some(HostPeer {
            local: self.network.host_peer(path, number)?,
            source: self.network.gid(path.source.into())?,
            queue_pair: self.queue_pairs.find(number)?,
        })
    }

    fn global_route(&self, path: &Path, number: u32, length: usize) -> [u8; 40] {
        let route = self.network.global_route(path, number, length);
        // A queue pair of the same process always has a route.
        route.unwrap_or([0; 40])
    }
}

impl queue_pair::Outgoing for net::Outbox<'_> {
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool {
        self.push(write)
    }

    fn push_run(&mut self, run: &Run, write: impl FnOnce(usize, &mut [u8]) -> bool) -> bool {
        self.push_run(run, write)
    }

    fn flush(&mut self) {
        self.flush();
    }

    fn defers_wakeups(&self) -> bool {
        self.defers_wakeups()
    }

    fn share_datagrams(&mut self) {
        self.share_datagrams();
    }

    fn use_link(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        self.use_link(link, tag, queue_pair);
    }

    fn take_shared_volume(&mut self) -> SharedVolume {
        self.take_shared_volume()
    }
}
