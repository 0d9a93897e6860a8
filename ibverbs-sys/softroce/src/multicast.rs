//! Multicast groups. A datagram to a group is received by all queue pairs that are attached to the
//! group.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::context::{HasUsage, InUse, Refusal};
use crate::limits::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};

/// The multicast groups of a NIC, found by their GIDs, with the queue pairs that are attached to
/// each group.
///
/// An attached queue pair counts as in use, and so cannot be destroyed (`ibv_destroy_qp(3)`).
#[derive(Debug)]
pub struct Groups<T: HasUsage> {
    groups: RwLock<HashMap<Ipv6Addr, Vec<InUse<T>>>>,
}

/// Reason for which a queue pair could not be attached to a multicast group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The arguments are invalid, or a limit is exceeded.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The operating system does not permit joining the group.
    #[error("the network does not let the group be joined")]
    Network(#[source] io::Error),
}

impl AttachError {
    /// Returns the error number (`errno`) that `ibv_attach_mcast` returns for this error. If an
    /// error of the operating system is the cause, returns the number of that error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused(refusal) => refusal.errno(),
            Self::Network(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
        }
    }
}

impl<T: HasUsage> Groups<T> {
    /// Creates an empty set of multicast groups.
    pub fn new() -> Self {
        Self {
            groups: RwLock::default(),
        }
    }

    /// Attaches the queue pair `member` to the multicast group with the GID `gid`. If the group had
    /// no queue pair before, calls `join`, by which the NIC joins the group. Does nothing if the
    /// queue pair is already attached: an attached queue pair receives each datagram only once
    /// (`ibv_attach_mcast(3)`).
    pub fn attach(
        &self,
        gid: Ipv6Addr,
        member: &Arc<T>,
        join: impl FnOnce(Ipv6Addr) -> io::Result<()>,
    ) -> Result<(), AttachError> {
        let group = canonical(gid).ok_or(Refusal::Invalid)?;
        let mut groups = self.groups.write();
        let Some(members) = groups.get_mut(&group) else {
            if groups.len() >= MAX_MCAST_GRP {
                return Err(Refusal::Exhausted.into());
            }
            let held = InUse::new(member)?;
            join(group).map_err(AttachError::Network)?;
            groups.insert(group, vec![held]);
            return Ok(());
        };
        if members
            .iter()
            .any(|held| Arc::ptr_eq(held.shared(), member))
        {
            return Ok(());
        }
        if members.len() >= MAX_MCAST_QP_ATTACH {
            return Err(Refusal::Exhausted.into());
        }
        members.push(InUse::new(member)?);
        Ok(())
    }

    /// Detaches the queue pair `member` from the multicast group with the GID `gid`. If the group
    /// has no queue pair left, calls `leave`, by which the NIC leaves the group. Fails if the queue
    /// pair is not attached.
    pub fn detach(
        &self,
        gid: Ipv6Addr,
        member: &Arc<T>,
        leave: impl FnOnce(Ipv6Addr),
    ) -> Result<(), Refusal> {
        let group = canonical(gid).ok_or(Refusal::Invalid)?;
        let mut groups = self.groups.write();
        let members = groups.get_mut(&group).ok_or(Refusal::Invalid)?;
        let place = members
            .iter()
            .position(|held| Arc::ptr_eq(held.shared(), member))
            .ok_or(Refusal::Invalid)?;
        members.swap_remove(place);
        if members.is_empty() {
            groups.remove(&group);
            leave(group);
        }
        Ok(())
    }

    /// Detaches the queue pair `member`, which is being destroyed, from all groups. Calls `leave`
    /// for each group that has no queue pair left.
    pub fn detach_all(&self, member: &Arc<T>, mut leave: impl FnMut(Ipv6Addr)) {
        self.groups.write().retain(|&group, members| {
            members.retain(|held| !Arc::ptr_eq(held.shared(), member));
            if members.is_empty() {
                leave(group);
            }
            !members.is_empty()
        });
    }

    /// Returns the queue pairs that are attached to the group with the GID `group`. Each of them
    /// receives the datagrams to the group.
    pub fn members(&self, group: Ipv6Addr) -> SmallVec<[Arc<T>; 8]> {
        let groups = self.groups.read();
        canonical(group)
            .and_then(|group| groups.get(&group))
            .into_iter()
            .flatten()
            .map(|held| Arc::clone(held.shared()))
            .collect()
    }
}

impl<T: HasUsage> Default for Groups<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the canonical GID of a multicast group, by which the group is stored. `gid` is any GID
/// of the group. Returns `None` if `gid` is not a multicast GID.
///
/// An IPv4 group has several GIDs: the IPv4-mapped form, and multicast forms with any scope. (The
/// kernel uses the form with global scope.) Packets to all of them are the same on the wire.
pub fn canonical(gid: Ipv6Addr) -> Option<Ipv6Addr> {
    let mapped = if gid.is_multicast() {
        let [_, rest @ ..] = gid.segments();
        let [head @ .., high, low] = rest;
        let address = Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
        if head != [0, 0, 0, 0, 0xffff] || !address.is_multicast() {
            return Some(gid);
        }
        address
    } else {
        gid.to_ipv4_mapped()
            .filter(|address| address.is_multicast())?
    };
    let [.., high, low] = mapped.to_ipv6_mapped().segments();
    Some(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0xffff, high, low))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::Arc;

    use super::{Groups, Refusal, canonical};
    use crate::context::{HasUsage, Usage};
    use crate::limits::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};

    #[derive(Default)]
    struct Member(Usage);

    impl HasUsage for Member {
        fn usage(&self) -> &Usage {
            &self.0
        }
    }

    /// A set of multicast groups under test, and the groups that the simulated NIC has joined.
    #[derive(Default)]
    struct Joined {
        groups: Groups<Member>,
        joined: RefCell<Vec<Ipv6Addr>>,
    }

    impl Joined {
        fn attach(&self, group: Ipv6Addr, member: &Arc<Member>) -> Result<(), i32> {
            let join = |group| {
                self.joined.borrow_mut().push(group);
                Ok(())
            };
            self.groups
                .attach(group, member, join)
                .map_err(|error| error.errno())
        }

        fn detach(&self, group: Ipv6Addr, member: &Arc<Member>) -> Result<(), Refusal> {
            self.groups.detach(group, member, |group| {
                self.joined.borrow_mut().retain(|joined| *joined != group);
            })
        }

        fn joined(&self) -> usize {
            self.joined.borrow().len()
        }
    }

    fn group(number: u32) -> Ipv6Addr {
        Ipv4Addr::from(0xe000_0100 + number).to_ipv6_mapped()
    }

    #[test]
    fn a_destroyed_member_leaves_all_groups() {
        let groups = Joined::default();
        let (one, two) = (Arc::<Member>::default(), Arc::<Member>::default());
        for (number, member) in [(0, &one), (1, &one), (1, &two)] {
            assert_eq!(groups.attach(group(number), member), Ok(()));
        }
        groups.groups.detach_all(&one, |group| {
            groups.joined.borrow_mut().retain(|joined| *joined != group);
        });
        assert_eq!(groups.joined(), 1);
        assert!(groups.groups.members(group(0)).is_empty());
        assert_eq!(groups.groups.members(group(1)).len(), 1);
        assert_eq!(one.0.close(), Ok(()));
    }

    #[test]
    fn a_member_is_in_use_until_it_is_detached() {
        let groups = Joined::default();
        let (one, two) = (Arc::<Member>::default(), Arc::<Member>::default());
        assert_eq!(groups.attach(group(0), &one), Ok(()));
        assert_eq!(groups.attach(group(0), &one), Ok(()));
        assert_eq!(groups.attach(group(0), &two), Ok(()));
        assert_eq!(groups.joined(), 1);
        assert_eq!(groups.attach(group(1), &one), Ok(()));
        assert_eq!(groups.joined(), 2);
        assert_eq!(groups.groups.members(group(0)).len(), 2);
        assert_eq!(one.0.close(), Err(Refusal::Busy));

        assert_eq!(groups.detach(group(0), &one), Ok(()));
        assert_eq!(groups.detach(group(0), &one), Err(Refusal::Invalid));
        assert_eq!(groups.joined(), 2);
        assert_eq!(groups.detach(group(1), &one), Ok(()));
        assert_eq!(groups.joined(), 1);
        assert_eq!(groups.detach(group(1), &one), Err(Refusal::Invalid));
        assert!(groups.groups.members(group(1)).is_empty());
        assert_eq!(one.0.close(), Ok(()));
        assert_eq!(groups.attach(group(0), &one), Err(libc::EINVAL));
        let members = groups.groups.members(group(0));
        assert!(members.len() == 1 && Arc::ptr_eq(&members[0], &two));
    }

    #[test]
    fn groups_and_members_are_limited() {
        let groups = Joined::default();
        let one = Arc::<Member>::default();
        for number in 0..u32::try_from(MAX_MCAST_GRP).unwrap() {
            groups.attach(group(number), &one).unwrap();
        }
        let more = group(u32::try_from(MAX_MCAST_GRP).unwrap());
        assert_eq!(groups.attach(more, &one), Err(libc::ENOMEM));
        for _ in 1..MAX_MCAST_QP_ATTACH {
            groups.attach(group(0), &Arc::default()).unwrap();
        }
        let last = groups.attach(group(0), &Arc::default());
        assert_eq!(last, Err(libc::ENOMEM));
        assert_eq!(groups.joined(), MAX_MCAST_GRP);
    }

    #[test]
    fn a_group_that_the_network_refuses_is_not_recorded() {
        let groups = Groups::<Member>::new();
        let one = Arc::<Member>::default();
        let refused = |_| Err(io::Error::from_raw_os_error(libc::ENODEV));
        let error = groups.attach(group(0), &one, refused).unwrap_err();
        assert_eq!(error.errno(), libc::ENODEV);
        assert!(groups.members(group(0)).is_empty());
        assert_eq!(one.0.close(), Ok(()));
    }

    #[test]
    fn a_group_has_one_canonical_gid() {
        let of = |gid: &str| canonical(gid.parse().unwrap()).map(|gid| gid.to_string());
        let kernel = Some("ff0e::ffff:e000:109".to_owned());
        for gid in [
            "::ffff:224.0.1.9",
            "ff0e::ffff:224.0.1.9",
            "ff02::ffff:224.0.1.9",
        ] {
            assert_eq!(of(gid), kernel);
        }
        for gid in ["ff02::1", "ff0e::ffff:10.0.1.9", "ff0e:1::ffff:224.0.1.9"] {
            let itself: Ipv6Addr = gid.parse().unwrap();
            assert_eq!(canonical(itself), Some(itself));
        }
        for gid in ["::", "::ffff:127.0.0.1", "fd00::1", "::224.0.1.9"] {
            assert_eq!(of(gid), None);
            let result = Joined::default().attach(gid.parse().unwrap(), &Arc::default());
            assert_eq!(result, Err(libc::EINVAL));
        }
        let groups = Joined::default();
        groups.attach(group(9), &Arc::default()).unwrap();
        assert_eq!(
            groups
                .groups
                .members("ff0e::ffff:224.0.1.9".parse().unwrap())
                .len(),
            1
        );
    }
}
