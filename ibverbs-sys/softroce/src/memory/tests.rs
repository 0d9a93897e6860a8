#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread;

use super::{DeviceMemory, RegionAttributes, RegionChange, Registry, Span, View, WindowKind};
use crate::context::{DomainId, Refusal};
use crate::proto::{AccessFlags, LocalFault, Memory, RemoteFault, Segment, WindowBinding};

const SIZE: u64 = 4096;
/// Address of the first byte of the tested region in requests.
const START: u64 = 0x1_0000;

/// A memory registry with one region, in device memory.
struct Fixture {
    registry: Registry,
    domain: DomainId,
    memory: Arc<DeviceMemory>,
    key: u32,
}

fn fixture(access: AccessFlags) -> Fixture {
    let (registry, domain) = (Registry::new(), DomainId::unique());
    let memory = registry.allocate(SIZE).unwrap();
    let span = Span::device(&memory, 0, SIZE).unwrap();
    let attributes = RegionAttributes {
        domain,
        span,
        start: START,
        access,
    };
    let key = registry.register(attributes).unwrap();
    Fixture {
        registry,
        domain,
        memory,
        key,
    }
}

impl Fixture {
    fn view(&self) -> View<'_> {
        self.registry.view(self.domain, 1)
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        Span::device(&self.memory, 0, SIZE)
            .unwrap()
            .read(offset, &mut bytes)
            .unwrap();
        bytes
    }

    fn segment(&self, offset: u64, length: u32) -> Segment {
        Segment {
            address: START + offset,
            length,
            key: self.key,
        }
    }

    fn window(&self, kind: WindowKind) -> u32 {
        self.registry.allocate_window(self.domain, kind).unwrap()
    }

    /// Returns a request to bind a window to the whole tested region, with the next key of the
    /// window.
    fn binding(&self, window: u32, access: AccessFlags) -> WindowBinding {
        WindowBinding {
            window,
            key: next(window),
            region: self.key,
            address: START,
            length: SIZE,
            access,
        }
    }
}

/// Returns `key` with its tag (low byte) incremented.
fn next(key: u32) -> u32 {
    key & !0xff | u32::from((key as u8).wrapping_add(1))
}

const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE;
const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);
const READ: AccessFlags = AccessFlags::REMOTE_READ;
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const ATOMIC: AccessFlags = AccessFlags::REMOTE_ATOMIC;

#[test]
fn messages_are_scattered_and_gathered_over_a_list() {
    let all = fixture(WRITABLE);
    let list = [
        all.segment(0, 3),
        all.segment(100, 0),
        all.segment(10, 5),
        all.segment(20, 100),
    ];
    let message: Vec<u8> = (1..=20).collect();
    // Writes the message in two parts, like the payloads of two packets.
    all.view().scatter(&list, 0, &message[..6]).unwrap();
    all.view().scatter(&list, 6, &message[6..]).unwrap();
    assert_eq!(all.bytes(0, 4), [1, 2, 3, 0]);
    assert_eq!(all.bytes(10, 6), [4, 5, 6, 7, 8, 0]);
    assert_eq!(
        all.bytes(20, 13),
        [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 0]
    );
    for cut in 0..=20 {
        let mut back = [0; 20];
        let (front, rest) = back.split_at_mut(cut);
        all.view().gather(&list, 0, front).unwrap();
        all.view().gather(&list, cut as u32, rest).unwrap();
        assert_eq!(back[..], message);
    }
}

#[test]
fn local_access_is_checked() {
    let all = fixture(AccessFlags::empty());
    let view = all.view();
    let mut byte = [0];
    assert_eq!(
        view.gather(&[all.segment(0, 1)], 0, &mut byte),
        Ok(()),
        "reading is always allowed"
    );
    let fault = Err(LocalFault::Protection);
    assert_eq!(
        view.scatter(&[all.segment(0, 1)], 0, &byte),
        fault,
        "writing is not"
    );
    assert_eq!(view.gather(&[all.segment(SIZE, 1)], 0, &mut byte), fault);
    assert_eq!(
        view.gather(&[all.segment(SIZE - 1, 2)], 0, &mut [0; 2]),
        fault
    );
    let below = Segment {
        address: START - 1,
        length: 2,
        key: all.key,
    };
    assert_eq!(view.gather(&[below], 0, &mut byte), fault);
    let wraps = Segment {
        address: u64::MAX,
        length: 2,
        key: all.key,
    };
    assert_eq!(view.gather(&[wraps], 1, &mut byte), fault);
    let stale = Segment {
        key: next(all.key),
        ..all.segment(0, 1)
    };
    assert_eq!(view.gather(&[stale], 0, &mut byte), fault);
    assert_eq!(
        view.gather(&[all.segment(0, 1)], 0, &mut [0; 2]),
        fault,
        "the list is too short"
    );
    let stranger = all.registry.view(DomainId::unique(), 1);
    assert_eq!(stranger.gather(&[all.segment(0, 1)], 0, &mut byte), fault);
}

#[test]
fn each_remote_access_flag_is_checked() {
    let flags = [READ, WRITE, ATOMIC];
    for granted in flags {
        let all = fixture(WRITABLE | granted);
        let view = all.view();
        for wanted in flags {
            let expected = if wanted == granted {
                Ok(())
            } else {
                Err(RemoteFault::Access)
            };
            assert_eq!(view.check_remote(all.key, START, 8, wanted), expected);
        }
        let expected = |flag| {
            if flag == granted {
                Ok(())
            } else {
                Err(RemoteFault::Access)
            }
        };
        assert_eq!(
            view.read_remote(all.key, START, &mut [0; 8]),
            expected(READ)
        );
        assert_eq!(view.write_remote(all.key, START, &[1; 8]), expected(WRITE));
        assert_eq!(
            view.fetch_add(all.key, START, 1).map(drop),
            expected(ATOMIC)
        );
        assert_eq!(
            view.compare_swap(all.key, START, 0, 1).map(drop),
            expected(ATOMIC)
        );
    }
}

#[test]
fn remote_bounds_keys_and_domains_are_checked() {
    let all = fixture(WRITABLE | READ | WRITE);
    let view = all.view();
    let refused = Err(RemoteFault::Access);
    assert_eq!(
        view.check_remote(all.key, START + SIZE - 8, 8, WRITE),
        Ok(())
    );
    assert_eq!(
        view.check_remote(all.key, START + SIZE - 7, 8, WRITE),
        refused
    );
    assert_eq!(view.check_remote(all.key, START - 1, 8, WRITE), refused);
    assert_eq!(view.check_remote(all.key, u64::MAX, 8, WRITE), refused);
    assert_eq!(view.check_remote(next(all.key), START, 8, WRITE), refused);
    assert_eq!(view.check_remote(0, START, 8, WRITE), refused);
    let stranger = all.registry.view(DomainId::unique(), 1);
    assert_eq!(stranger.check_remote(all.key, START, 8, WRITE), refused);
    // IBTA 9.7.4.1.5: the key of an access to zero bytes is not checked.
    assert_eq!(stranger.check_remote(0, 0, 0, WRITE), Ok(()));
    assert_eq!(stranger.write_remote(0, 0, &[]), Ok(()));
    assert_eq!(stranger.read_remote(0, 0, &mut []), Ok(()));
}

#[test]
fn atomic_operations_require_aligned_addresses() {
    let all = fixture(WRITABLE | ATOMIC);
    for offset in 1..8 {
        let answer = all.view().fetch_add(all.key, START + offset, 1);
        assert_eq!(answer, Err(RemoteFault::Invalid));
    }
    assert_eq!(all.view().fetch_add(all.key, START + 8, 5), Ok(0));
    assert_eq!(all.view().compare_swap(all.key, START + 8, 5, 7), Ok(5));
    assert_eq!(all.view().compare_swap(all.key, START + 8, 5, 9), Ok(7));
    assert_eq!(all.bytes(8, 8), 7_u64.to_ne_bytes());
    assert_eq!(
        all.view().fetch_add(all.key, START + SIZE - 4, 1),
        Err(RemoteFault::Invalid)
    );
    assert_eq!(
        all.view().fetch_add(all.key, START + SIZE, 1),
        Err(RemoteFault::Access)
    );
}

#[test]
fn a_key_is_invalid_after_its_region_is_deregistered() {
    let all = fixture(WRITABLE | READ);
    let old = all.key;
    all.registry.deregister(old).unwrap();
    assert_eq!(all.registry.deregister(old), Err(Refusal::Invalid));
    let refused = Err(RemoteFault::Access);
    assert_eq!(all.view().check_remote(old, START, 1, READ), refused);
    // The key stays invalid even if later regions are registered, possibly in the same slot.
    for _ in 0..200 {
        let span = Span::device(&all.memory, 0, SIZE).unwrap();
        let attributes = RegionAttributes {
            domain: all.domain,
            span,
            start: START,
            access: WRITABLE | READ,
        };
        let key = all.registry.register(attributes).unwrap();
        assert_eq!(all.view().check_remote(key, START, 1, READ), Ok(()));
        assert_eq!(all.view().check_remote(old, START, 1, READ), refused);
        all.registry.deregister(key).unwrap();
    }
}

#[test]
fn an_empty_region_has_a_key_and_grants_no_access() {
    let all = fixture(WRITABLE);
    let span = Span::device(&all.memory, 0, 0).unwrap();
    let attributes = RegionAttributes {
        domain: all.domain,
        span,
        start: START,
        access: WRITABLE | READ,
    };
    let key = all.registry.register(attributes).unwrap();
    assert_eq!(
        all.view().check_remote(key, START, 1, READ),
        Err(RemoteFault::Access)
    );
    let segment = Segment {
        address: START,
        length: 1,
        key,
    };
    assert_eq!(
        all.view().gather(&[segment], 0, &mut [0]),
        Err(LocalFault::Protection)
    );
    assert_eq!(
        all.view().gather(
            &[Segment {
                length: 0,
                ..segment
            }],
            0,
            &mut []
        ),
        Ok(())
    );
    all.registry.deregister(key).unwrap();
}

#[test]
fn addresses_do_not_wrap() {
    let all = fixture(WRITABLE);
    let register = |start| {
        let span = Span::device(&all.memory, 0, SIZE).unwrap();
        let attributes = RegionAttributes {
            domain: all.domain,
            span,
            start,
            access: WRITABLE,
        };
        all.registry.register(attributes).map(drop)
    };
    assert_eq!(register(u64::MAX - SIZE + 1), Err(Refusal::Invalid));
    assert_eq!(register(u64::MAX - SIZE), Ok(()));
    assert_eq!(register(0), Ok(()));
}

#[test]
fn the_null_region_is_local_and_stores_no_bytes() {
    let all = fixture(WRITABLE);
    let attributes = RegionAttributes {
        domain: all.domain,
        span: Span::null(),
        start: 0,
        access: WRITABLE | READ,
    };
    let key = all.registry.register(attributes).unwrap();
    let segment = Segment {
        address: 0x1234_5678,
        length: 8,
        key,
    };
    let mut bytes = [7; 8];
    assert_eq!(all.view().scatter(&[segment], 0, &bytes), Ok(()));
    assert_eq!(all.view().gather(&[segment], 0, &mut bytes), Ok(()));
    assert_eq!(bytes, [0; 8]);
    assert_eq!(
        all.view().check_remote(key, 0, 8, READ),
        Err(RemoteFault::Access)
    );
    let change = RegionChange {
        access: Some(WRITABLE),
        ..RegionChange::default()
    };
    assert_eq!(all.registry.reregister(key, change), Err(Refusal::Invalid));
}

#[test]
fn device_memory_is_limited_and_can_be_freed() {
    let registry = Registry::new();
    let limit = crate::limits::MAX_DM_SIZE;
    let most = registry.allocate(limit - 8).unwrap();
    assert_eq!(registry.allocate(9).map(drop), Err(Refusal::Exhausted));
    assert_eq!(
        registry.allocate(u64::MAX).map(drop),
        Err(Refusal::Exhausted)
    );
    registry.allocate(8).unwrap();
    registry.deallocate(most.length());
    registry.allocate(limit - 8).unwrap();
}

#[test]
fn a_type_1_window_can_be_bound_repeatedly_and_used_by_every_queue_pair() {
    let all = fixture(BINDABLE);
    let window = all.window(WindowKind::Type1);
    let refused = Err(RemoteFault::Access);
    assert_eq!(
        all.view().check_remote(window, START, 1, READ),
        refused,
        "not bound"
    );

    let first = WindowBinding {
        address: START + 8,
        length: 16,
        ..all.binding(window, READ)
    };
    all.view().bind(&first).unwrap();
    let other = all.registry.view(all.domain, 2);
    for view in [all.view(), other] {
        assert_eq!(view.check_remote(first.key, START + 8, 16, READ), Ok(()));
        assert_eq!(view.check_remote(first.key, START + 7, 1, READ), refused);
        assert_eq!(view.check_remote(first.key, START + 8, 17, READ), refused);
        assert_eq!(view.check_remote(first.key, START + 8, 1, WRITE), refused);
        assert_eq!(
            view.check_remote(window, START + 8, 1, READ),
            refused,
            "the old key"
        );
    }
    assert_eq!(all.view().invalidate(first.key), Err(LocalFault::Bind));
    assert_eq!(all.view().invalidate_remote(first.key), refused);

    assert_eq!(
        other.bind(&all.binding(window, WRITE)),
        Err(LocalFault::Bind),
        "the old key"
    );
    let second = all.binding(first.key, WRITE);
    other.bind(&second).unwrap();
    assert_eq!(all.view().check_remote(second.key, START, 1, WRITE), Ok(()));
    assert_eq!(
        all.view().check_remote(first.key, START + 8, 1, READ),
        refused
    );
    assert_eq!(
        all.registry.deregister(all.key),
        Err(Refusal::Busy),
        "one window, one binding"
    );

    let unbind = WindowBinding {
        length: 0,
        ..all.binding(second.key, WRITE)
    };
    all.view().bind(&unbind).unwrap();
    assert_eq!(
        all.view().check_remote(unbind.key, START, 1, WRITE),
        refused
    );
    assert_eq!(all.registry.deregister(all.key), Ok(()));
    assert_eq!(all.registry.deallocate_window(window), Ok(()));
}

#[test]
fn a_type_2_window_is_valid_for_its_queue_pair_until_invalidated() {
    let all = fixture(BINDABLE);
    let window = all.window(WindowKind::Type2);
    let other = all.registry.view(all.domain, 2);
    let refused = Err(RemoteFault::Access);
    // The program chooses the tag (low byte) of the window's key.
    let binding = WindowBinding {
        key: window & !0xff | 0xa5,
        ..all.binding(window, READ)
    };
    all.view().bind(&binding).unwrap();
    assert_eq!(all.view().check_remote(binding.key, START, 1, READ), Ok(()));
    assert_eq!(other.check_remote(binding.key, START, 1, READ), refused);

    let delay = WindowBinding {
        window: binding.key,
        key: window,
        ..binding
    };
    assert_eq!(
        all.view().bind(&delay),
        Err(LocalFault::Bind),
        "it is not free"
    );
    assert_eq!(other.invalidate(binding.key), Err(LocalFault::Bind));
    assert_eq!(other.invalidate_remote(binding.key), refused);
    assert_eq!(
        all.view().invalidate(next(binding.key)),
        Err(LocalFault::Bind)
    );
    let stranger = all.registry.view(DomainId::unique(), 1);
    assert_eq!(stranger.invalidate(binding.key), Err(LocalFault::Bind));

    assert_eq!(all.registry.deregister(all.key), Err(Refusal::Busy));
    assert_eq!(all.view().invalidate(binding.key), Ok(()));
    assert_eq!(
        all.view().check_remote(binding.key, START, 1, READ),
        refused
    );
    assert_eq!(
        all.view().invalidate(binding.key),
        Err(LocalFault::Bind),
        "once"
    );

    other.bind(&delay).unwrap();
    assert_eq!(other.invalidate_remote(delay.key), Ok(()));
    assert_eq!(all.registry.deregister(all.key), Ok(()));
}

#[test]
fn a_window_binding_changes_only_the_tag_of_the_key() {
    let all = fixture(BINDABLE);
    let window = all.window(WindowKind::Type2);
    let good = all.binding(window, READ);
    let wanted = WindowBinding {
        key: good.key ^ 0x5500_0000,
        ..good
    };
    assert_eq!(all.view().bind(&wanted), Ok(()));
    assert_eq!(all.view().invalidate(wanted.key), Err(LocalFault::Bind));
    assert_eq!(all.view().invalidate(good.key), Ok(()));
}

#[test]
fn a_zero_based_region_has_no_windows() {
    let all = fixture(BINDABLE | AccessFlags::ZERO_BASED);
    let window = all.window(WindowKind::Type2);
    let binding = all.binding(window, READ);
    assert_eq!(all.view().bind(&binding), Err(LocalFault::Bind));
}

#[test]
fn words_are_written_and_flushed_only_with_the_rights_of_the_region() {
    let all = fixture(AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL);
    let view = all.view();
    assert_eq!(view.write_word(all.key, START + 8, [7; 8]), Ok(()));
    assert_eq!(all.bytes(0, 24)[8..16], [7; 8]);
    for (offset, fault) in [(4, RemoteFault::Invalid), (SIZE, RemoteFault::Access)] {
        let written = view.write_word(all.key, START + offset, [8; 8]);
        assert_eq!(written, Err(fault));
    }
    let read = fixture(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC);
    let written = read.view().write_word(read.key, START, [8; 8]);
    assert_eq!(written, Err(RemoteFault::Access));

    let global = AccessFlags::FLUSH_GLOBAL;
    let refused = Err(RemoteFault::Access);
    assert_eq!(
        view.flush(all.key, Some((START, SIZE as u32)), global),
        Ok(())
    );
    assert_eq!(view.flush(all.key, None, global), Ok(()));
    assert_eq!(
        view.flush(all.key, Some((START + 1, SIZE as u32)), global),
        refused
    );
    assert_eq!(view.flush(next(all.key), None, global), refused);
    assert_eq!(read.view().flush(read.key, None, global), refused);
}

#[test]
fn invalid_window_bindings_are_refused() {
    let all = fixture(BINDABLE);
    let refused = Err(LocalFault::Bind);
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let window = all.window(kind);
        let good = all.binding(window, READ);
        let view = all.view();
        let bind = |binding: WindowBinding| view.bind(&binding);
        assert_eq!(
            bind(WindowBinding {
                region: next(all.key),
                ..good
            }),
            refused
        );
        assert_eq!(
            bind(WindowBinding {
                region: window,
                ..good
            }),
            refused,
            "not a region"
        );
        assert_eq!(
            bind(WindowBinding {
                window: all.key,
                key: next(all.key),
                ..good
            }),
            refused
        );
        assert_eq!(
            bind(WindowBinding {
                access: AccessFlags::from_bits_retain(1 << 31),
                ..good
            }),
            refused,
            "an unknown flag"
        );
        assert_eq!(
            bind(WindowBinding {
                access: AccessFlags::FLUSH_GLOBAL,
                ..good
            }),
            refused,
            "the region is not flushed"
        );
        assert_eq!(
            bind(WindowBinding {
                address: START - 1,
                ..good
            }),
            refused
        );
        assert_eq!(
            bind(WindowBinding {
                length: SIZE + 1,
                ..good
            }),
            refused
        );
        assert_eq!(
            bind(WindowBinding {
                address: START + 1,
                ..good
            }),
            refused
        );
        assert_eq!(
            bind(WindowBinding {
                length: u64::MAX,
                ..good
            }),
            refused
        );
        assert_eq!(
            all.registry.view(DomainId::unique(), 1).bind(&good),
            refused
        );
        assert_eq!(bind(good), Ok(()), "nothing else is wrong");
    }
    let window = all.window(WindowKind::Type2);
    let nothing = WindowBinding {
        length: 0,
        ..all.binding(window, READ)
    };
    assert_eq!(all.view().bind(&nothing), refused, "that is for type 1");

    let unbindable = fixture(WRITABLE);
    let window = unbindable.window(WindowKind::Type1);
    assert_eq!(
        unbindable.view().bind(&unbindable.binding(window, READ)),
        refused
    );

    let read_only = fixture(AccessFlags::MW_BIND);
    let window = read_only.window(WindowKind::Type1);
    for access in [WRITE, ATOMIC] {
        assert_eq!(
            read_only.view().bind(&read_only.binding(window, access)),
            refused
        );
    }
    assert_eq!(
        read_only.view().bind(&read_only.binding(window, READ)),
        Ok(())
    );
}

#[test]
fn addresses_of_a_zero_based_window_start_at_its_first_byte() {
    let all = fixture(BINDABLE);
    let window = all.window(WindowKind::Type2);
    let binding = WindowBinding {
        address: START + 100,
        length: 10,
        ..all.binding(window, WRITE | AccessFlags::ZERO_BASED)
    };
    all.view().bind(&binding).unwrap();
    all.view().write_remote(binding.key, 0, &[1, 2]).unwrap();
    all.view().write_remote(binding.key, 9, &[3]).unwrap();
    let refused = Err(RemoteFault::Access);
    assert_eq!(all.view().write_remote(binding.key, 9, &[3, 4]), refused);
    assert_eq!(
        all.view().write_remote(binding.key, START + 100, &[3]),
        refused
    );
    assert_eq!(all.bytes(100, 11), [1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
    let window = all.window(WindowKind::Type1);
    let binding = all.binding(window, WRITE | AccessFlags::ZERO_BASED);
    assert_eq!(all.view().bind(&binding), Err(LocalFault::Bind));
}

#[test]
fn a_deallocated_window_releases_its_region() {
    let all = fixture(BINDABLE);
    let (one, two) = (all.window(WindowKind::Type1), all.window(WindowKind::Type2));
    let binding = all.binding(one, READ);
    all.view().bind(&binding).unwrap();
    all.view().bind(&all.binding(two, READ)).unwrap();
    assert_eq!(
        all.registry.deallocate_window(one),
        Ok(()),
        "by any of its keys"
    );
    assert_eq!(
        all.view().check_remote(binding.key, START, 1, READ),
        Err(RemoteFault::Access)
    );
    assert_eq!(all.registry.deregister(all.key), Err(Refusal::Busy));
    all.registry.release_queue_pair(2);
    assert_eq!(all.registry.deregister(all.key), Err(Refusal::Busy));
    all.registry.release_queue_pair(1);
    assert_eq!(all.registry.deregister(all.key), Ok(()));
    assert_eq!(
        all.registry.deallocate_window(all.key),
        Err(Refusal::Invalid)
    );
}

#[test]
fn a_window_key_is_no_local_key_and_a_region_key_is_not_invalidated() {
    let all = fixture(BINDABLE | READ);
    let window = all.window(WindowKind::Type2);
    let binding = all.binding(window, READ);
    all.view().bind(&binding).unwrap();
    let segment = Segment {
        key: binding.key,
        ..all.segment(0, 1)
    };
    assert_eq!(
        all.view().gather(&[segment], 0, &mut [0]),
        Err(LocalFault::Protection)
    );
    assert_eq!(all.view().invalidate(all.key), Err(LocalFault::Bind));
    assert_eq!(
        all.view().invalidate_remote(all.key),
        Err(RemoteFault::Access)
    );
    assert_eq!(all.view().check_remote(all.key, START, 1, READ), Ok(()));
}

/// Checks that no copy is in progress when a deregistration has returned.
#[test]
fn no_copy_writes_after_a_deregistration() {
    for round in 1..50_u8 {
        let all = fixture(WRITABLE | WRITE);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                while all
                    .view()
                    .write_remote(all.key, START, &[round; 1000])
                    .is_ok()
                {}
            });
            while all.bytes(0, 1) == [0] {
                thread::yield_now();
            }
            all.registry.deregister(all.key).unwrap();
            Span::device(&all.memory, 0, SIZE)
                .unwrap()
                .write(0, &[0xff; 1000])
                .unwrap();
            writer.join().unwrap();
        });
        assert_eq!(all.bytes(0, 1000), [0xff; 1000]);
    }
}

#[test]
fn split_copies_have_the_same_effect_as_one_copy() {
    let fixture = fixture(WRITABLE | WRITE);
    let view = fixture.view();
    let pattern: Vec<u8> = (0..200).collect();
    let (address, length) = (START + 7, pattern.len() as u32);
    let parts = pattern.chunks(60);
    view.write_remote_parts(fixture.key, address, length, parts.clone())
        .unwrap();
    assert_eq!(fixture.bytes(7, 200), pattern);
    // The first place ends one byte after the region: only the last chunk alone, or the first three
    // chunks, would be accessible.
    let wrong = [(fixture.key, START + SIZE - 199), (fixture.key + 1, START)];
    for (key, address) in wrong {
        let result = view.write_remote_parts(key, address, length, parts.clone());
        assert_eq!(result, Err(RemoteFault::Access));
    }
    assert_eq!(fixture.bytes(SIZE - 199, 199), [0; 199]);

    // Checks a single segment, and a list of several segments.
    for list in [
        vec![fixture.segment(500, 220)],
        vec![fixture.segment(500, 100), fixture.segment(600, 110)],
    ] {
        let mut out = vec![0; 200];
        view.scatter_parts(&list, 10, length, parts.clone())
            .unwrap();
        assert_eq!(fixture.bytes(510, 200), pattern);
        view.gather_parts(&list, 10, length, out.chunks_mut(30))
            .unwrap();
        assert_eq!(out, pattern);
        let short = view.gather_parts(&list, 30, length, out.chunks_mut(30));
        assert_eq!(short, Err(LocalFault::Protection));
        let short = view.scatter_parts(&list, 30, length, parts.clone());
        assert_eq!(short, Err(LocalFault::Protection));
    }
    let beyond = [fixture.segment(SIZE - 100, 300)];
    let result = view.scatter_parts(&beyond, 0, length, parts);
    assert_eq!(result, Err(LocalFault::Protection));
    assert_eq!(fixture.bytes(SIZE - 100, 100), [0; 100]);
}
