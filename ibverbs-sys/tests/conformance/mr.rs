//! Memory regions: registration, and access rights.

use std::ffi::c_int;
use std::ptr;
use std::rc::Rc;

use ibverbs_sys::ibv_access_flags as Access;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        region_describes_itself,
        regions_of_the_same_memory_have_their_own_keys,
        many_regions_exist_at_once,
        local_write_is_granted,
        no_access_at_all_is_granted,
        remote_read_needs_no_local_write,
        remote_write_needs_local_write,
        remote_atomic_needs_local_write,
        unmapped_memory_is_refused,
        read_only_memory_is_refused_for_writing,
        read_only_memory_can_be_read_from,
        length_that_wraps_around_is_refused,
        unknown_access_is_refused,
        optional_access_flags_are_accepted,
        region_of_one_byte_works,
        region_across_pages_works,
        a_region_is_deregistered_while_others_exist,
        foreign_domain_s_region_is_refused,
        zero_based_region_starts_at_zero,
        region_at_a_virtual_address,
        reregister_changes_the_access,
        reregister_of_the_access_keeps_the_keys,
        reregistration_changes_the_memory,
        reregister_changes_the_domain,
        reregister_without_a_change_is_refused,
        reregister_to_bad_access_is_refused,
        on_demand_region_as_claimed,
        implicit_on_demand_region_as_claimed,
        advice_is_taken,
        advice_beyond_the_region_is_refused,
        advice_for_a_foreign_region_is_refused,
        a_null_region_discards_writes_and_reads_as_zeroes,
        device_memory_copies_and_serves,
        device_memory_is_copied_in_whole_words,
        device_memory_beyond_its_end_is_refused,
        device_memory_of_a_region_is_busy,
        dma_buf_that_is_none_is_refused,
        region_is_of_no_use_after_its_end,
    ]
}

fn region_describes_itself(device: &Device) {
    let pd = Pd::new(device);
    let mr = Mr::new(&pd, 8192, ALL_ACCESS);
    let raw = unsafe { &*mr.raw() };
    equal("addr", raw.addr as u64, mr.memory().address());
    equal("length", raw.length, 8192);
    equal("pd", raw.pd, pd.raw());
    equal("context", raw.context, device.context());
}

fn regions_of_the_same_memory_have_their_own_keys(device: &Device) {
    let pd = Pd::new(device);
    let memory = Rc::new(Memory::new(4096));
    let make = || Mr::of(&pd, &memory, 0, 4096, ALL_ACCESS).succeeds("ibv_reg_mr");
    let (first, second) = (make(), make());
    assert!(first.lkey() != second.lkey() && first.rkey() != second.rkey());
}

fn many_regions_exist_at_once(device: &Device) {
    let pd = Pd::new(device);
    let memory = Rc::new(Memory::new(4096));
    let regions: Vec<_> = (0..100)
        .map(|at| Mr::of(&pd, &memory, at * 40, 40, ALL_ACCESS).succeeds("ibv_reg_mr"))
        .collect();
    let mut keys: Vec<_> = regions.iter().map(Mr::rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    equal("the number of different keys", keys.len(), regions.len());
}

#[track_caller]
fn granted(device: &Device, access: Access) {
    drop(Mr::new(&Pd::new(device), 4096, access));
}

#[track_caller]
fn refused(device: &Device, access: Access) {
    let (pd, memory) = (Pd::new(device), Rc::new(Memory::new(4096)));
    let result = Mr::of(&pd, &memory, 0, 4096, access);
    result
        .map(drop)
        .fails("ibv_reg_mr", &[libc::EINVAL, libc::EOPNOTSUPP]);
}

fn local_write_is_granted(device: &Device) {
    granted(device, Access::IBV_ACCESS_LOCAL_WRITE);
}

fn no_access_at_all_is_granted(device: &Device) {
    granted(device, NO_ACCESS);
}

fn remote_read_needs_no_local_write(device: &Device) {
    granted(device, Access::IBV_ACCESS_REMOTE_READ);
}

fn remote_write_needs_local_write(device: &Device) {
    refused(device, Access::IBV_ACCESS_REMOTE_WRITE);
}

fn remote_atomic_needs_local_write(device: &Device) {
    refused(device, Access::IBV_ACCESS_REMOTE_ATOMIC);
}

fn unmapped_memory_is_refused(device: &Device) {
    let pd = Pd::new(device);
    let memory = Memory::new(4096);
    let address = memory.address();
    drop(memory);
    unsafe { ibv_reg_mr(pd.raw(), address as *mut _, 4096, 1) }
        .fails("ibv_reg_mr", &[libc::EFAULT, libc::ENOMEM]);
}

fn protect(memory: &Memory, protection: c_int) {
    unsafe { libc::mprotect(memory.address() as *mut _, 4096, protection) }.succeeds("mprotect");
}

fn read_only_memory_is_refused_for_writing(device: &Device) {
    let (pd, memory) = (Pd::new(device), Rc::new(Memory::new(4096)));
    protect(&memory, libc::PROT_READ);
    let result = Mr::of(&pd, &memory, 0, 4096, Access::IBV_ACCESS_LOCAL_WRITE);
    result
        .map(drop)
        .fails("ibv_reg_mr", &[libc::EFAULT, libc::EACCES]);
}

fn read_only_memory_can_be_read_from(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(4096));
    memory.write(0, b"constant");
    protect(&memory, libc::PROT_READ);
    let mr = Mr::of(&pair.pd, &memory, 0, 4096, NO_ACCESS).succeeds("ibv_reg_mr");
    pair.b.receive(1, 0, 64);
    pair.a.qp.post(Request::send(&[mr.sge(0, 8)]));
    pair.a.cq.success(1);
    pair.b.cq.success(1);
    equal("what came", pair.b.mr.read(0, 8), b"constant".to_vec());
}

fn length_that_wraps_around_is_refused(device: &Device) {
    let (pd, memory) = (Pd::new(device), Rc::new(Memory::new(4096)));
    let address = memory.address() as *mut _;
    unsafe { ibv_reg_mr(pd.raw(), address, usize::MAX - 4096, 1) }.fails(
        "ibv_reg_mr",
        &[libc::EINVAL, libc::ENOMEM, libc::EFAULT, libc::EOVERFLOW],
    );
}

fn unknown_access_is_refused(device: &Device) {
    // Bits 20 to 29 may be ignored (IBV_ACCESS_OPTIONAL_RANGE); bit 19 must not.
    refused(device, Access(1 << 19));
}

fn optional_access_flags_are_accepted(device: &Device) {
    granted(
        device,
        Access::IBV_ACCESS_LOCAL_WRITE | Access::IBV_ACCESS_RELAXED_ORDERING | Access(1 << 29),
    );
}

fn region_of_one_byte_works(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(4096));
    let mr = Mr::of(&pair.pd, &memory, 77, 1, ALL_ACCESS).succeeds("ibv_reg_mr");
    pair.a.mr.write(0, b"x");
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 1)], mr.at(0), mr.rkey()));
    pair.a.cq.success(1);
    equal("what came", memory.read(76, 3), b"\0x\0".to_vec());
}

fn region_across_pages_works(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(4 << 12));
    let mr = Mr::of(&pair.pd, &memory, 4000, 9000, ALL_ACCESS).succeeds("ibv_reg_mr");
    let sent = pattern(9000, 5);
    pair.a.mr.write(0, &sent);
    pair.a.qp.post(Request::write(
        &[pair.a.mr.sge(0, 9000)],
        mr.at(0),
        mr.rkey(),
    ));
    pair.a.cq.success(1);
    assert!(memory.read(4000, 9000) == sent);
    equal("the byte behind", memory.read(13000, 1), vec![0]);
}

fn a_region_is_deregistered_while_others_exist(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(4096));
    let other = Mr::of(&pair.pd, &memory, 0, 4096, ALL_ACCESS).succeeds("ibv_reg_mr");
    other.deregister().1.succeeds("ibv_dereg_mr");
    pair.exchange(100);
}

fn foreign_domain_s_region_is_refused(device: &Device) {
    let pair = Pair::rc(device);
    let foreign = Mr::new(&Pd::new(device), 4096, ALL_ACCESS);
    pair.b.receive(1, 0, 64);
    pair.a.qp.post(Request::send(&[foreign.sge(0, 8)]));
    pair.a.cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
}

/// Writes eight bytes to offset 16 of a region that starts at `base`, and reads them back.
fn reaches(pair: &Pair, mr: &Mr, base: u64) {
    pair.a.mr.write(0, b"anywhere");
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 8)], base + 16, mr.rkey()));
    pair.a.cq.success(1);
    equal("what came", mr.read(16, 8), b"anywhere".to_vec());
    let sge = ibv_sge {
        addr: base + 16,
        length: 8,
        lkey: mr.lkey(),
    };
    pair.a.receive(2, 100, 8);
    pair.b.qp.post(Request::send(&[sge]).id(3));
    pair.b.cq.success(3);
    pair.a.cq.success(2);
    equal(
        "what came back",
        pair.a.mr.read(100, 8),
        b"anywhere".to_vec(),
    );
}

fn zero_based_region_starts_at_zero(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(4096));
    let access = ALL_ACCESS | Access::IBV_ACCESS_ZERO_BASED;
    let mr = Mr::of(&pair.pd, &memory, 0, 4096, access).supported("ibv_reg_mr(ZERO_BASED)");
    reaches(&pair, &mr, 0);
}

fn region_at_a_virtual_address(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(4096));
    let (start, base) = (memory.address() as *mut _, 0x7000_0000_0000);
    let access = ALL_ACCESS.0 as c_int;
    let raw = unsafe { ibv_reg_mr_iova(pair.pd.raw(), start, 4096, base, access) };
    let mr = Mr::from_raw(&pair.pd, &memory, raw.succeeds("ibv_reg_mr_iova"));
    reaches(&pair, &mr, base);
}

fn reregister(mr: &Mr, flags: ibv_rereg_mr_flags, pd: *mut ibv_pd, access: Access) -> c_int {
    unsafe {
        ibv_rereg_mr(
            mr.raw(),
            flags.0 as c_int,
            pd,
            ptr::null_mut(),
            0,
            access.0 as c_int,
        )
    }
}

/// Fails the case unless a reregistration succeeded; ignores the case if the device does not
/// support reregistration. `ibv_rereg_mr` returns one of several results on failure, and sets
/// `errno`.
#[track_caller]
fn reregistered(result: c_int) {
    if result != 0 && [libc::EOPNOTSUPP, libc::ENOSYS].contains(&errno()) {
        ignore("ibv_rereg_mr: EOPNOTSUPP");
    }
    assert!(
        result == 0,
        "ibv_rereg_mr returned {result} ({})",
        std::io::Error::last_os_error()
    );
}

fn reregister_changes_the_access(device: &Device) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, Access::IBV_ACCESS_LOCAL_WRITE);
    let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS;
    reregistered(reregister(&mr, flags, ptr::null_mut(), ALL_ACCESS));
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 8)], mr.at(0), mr.rkey()));
    pair.a.cq.success(1);
}

fn reregister_of_the_access_keeps_the_keys(device: &Device) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, ALL_ACCESS);
    let keys = (mr.lkey(), mr.rkey());
    let write = || Request::write(&[pair.a.mr.sge(0, 8)], mr.at(0), keys.1);
    pair.a.qp.post(write());
    pair.a.cq.success(1);
    let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS;
    let local = Access::IBV_ACCESS_LOCAL_WRITE;
    reregistered(reregister(&mr, flags, ptr::null_mut(), local));
    equal("the keys", (mr.lkey(), mr.rkey()), keys);
    reregistered(reregister(&mr, flags, ptr::null_mut(), ALL_ACCESS));
    equal("the keys", (mr.lkey(), mr.rkey()), keys);
    pair.a.qp.post(write());
    pair.a.cq.success(1);
    reregistered(reregister(&mr, flags, ptr::null_mut(), local));
    pair.a.qp.post(write());
    pair.a.cq.expect(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}

fn reregistration_changes_the_memory(device: &Device) {
    let pair = Pair::rc(device);
    let memory = Rc::new(Memory::new(8192));
    let mr = Mr::of(&pair.pd, &memory, 0, 4096, ALL_ACCESS).succeeds("ibv_reg_mr");
    let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION;
    let to = memory.address() + 4096;
    reregistered(unsafe {
        ibv_rereg_mr(
            mr.raw(),
            flags.0 as c_int,
            ptr::null_mut(),
            to as *mut _,
            4096,
            0,
        )
    });
    equal("addr", unsafe { (*mr.raw()).addr } as u64, to);
    pair.a.mr.write(0, b"moved");
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 5)], to, mr.rkey()));
    pair.a.cq.success(1);
    equal("what came", memory.read(4096, 5), b"moved".to_vec());
}

fn reregister_changes_the_domain(device: &Device) {
    let pair = Pair::rc(device);
    let elsewhere = Pd::new(device);
    let mr = Mr::new(&elsewhere, 4096, ALL_ACCESS);
    let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD;
    reregistered(reregister(&mr, flags, pair.pd.raw(), NO_ACCESS));
    equal("pd", unsafe { (*mr.raw()).pd }, pair.pd.raw());
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 8)], mr.at(0), mr.rkey()));
    pair.a.cq.success(1);
    drop(mr);
}

fn reregister_without_a_change_is_refused(device: &Device) {
    let mr = Mr::new(&Pd::new(device), 4096, ALL_ACCESS);
    let result = reregister(&mr, ibv_rereg_mr_flags(0), ptr::null_mut(), ALL_ACCESS);
    equal(
        "the result",
        result,
        ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0,
    );
}

fn reregister_to_bad_access_is_refused(device: &Device) {
    let mr = Mr::new(&Pd::new(device), 4096, ALL_ACCESS);
    let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS;
    let access = Access::IBV_ACCESS_REMOTE_WRITE;
    let result = reregister(&mr, flags, ptr::null_mut(), access);
    assert!(result != 0, "remote write was granted without local write");
}

fn on_demand_region_as_claimed(device: &Device) {
    let pair = Pair::rc(device);
    let claimed = device.attr_ex().odp_caps.general_caps
        & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0)
        != 0;
    let memory = Rc::new(Memory::new(1 << 16));
    let access = ALL_ACCESS | Access::IBV_ACCESS_ON_DEMAND;
    let made = Mr::of(&pair.pd, &memory, 0, 1 << 16, access);
    if !claimed {
        return made.map(drop).fails(
            "ibv_reg_mr(ON_DEMAND)",
            &[libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS],
        );
    }
    let mr = made.succeeds("ibv_reg_mr(ON_DEMAND)");
    pair.a.mr.write(0, b"late");
    pair.a.qp.post(Request::write(
        &[pair.a.mr.sge(0, 4)],
        mr.at(5000),
        mr.rkey(),
    ));
    pair.a.cq.success(1);
    equal("what came", memory.read(5000, 4), b"late".to_vec());
}

fn implicit_on_demand_region_as_claimed(device: &Device) {
    let pair = Pair::rc(device);
    let implicit = ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0;
    let claimed = device.attr_ex().odp_caps.general_caps & u64::from(implicit) != 0;
    let access = (ALL_ACCESS | Access::IBV_ACCESS_ON_DEMAND).0 as c_int;
    let made = unsafe { ibv_reg_mr(pair.pd.raw(), ptr::null_mut(), usize::MAX, access) };
    if !claimed {
        return made.fails(
            "ibv_reg_mr(implicit)",
            &[
                libc::EOPNOTSUPP,
                libc::EINVAL,
                libc::ENOSYS,
                libc::EFAULT,
                libc::ENOMEM,
            ],
        );
    }
    let memory = Rc::new(Memory::new(4096));
    let mr = Mr::from_raw(&pair.pd, &memory, made.succeeds("ibv_reg_mr(implicit)"));
    pair.a.mr.write(0, b"anywhere");
    pair.a.qp.post(Request::write(
        &[pair.a.mr.sge(0, 8)],
        memory.address(),
        mr.rkey(),
    ));
    pair.a.cq.success(1);
    equal("what came", memory.read(0, 8), b"anywhere".to_vec());
}

fn advise(pd: &Pd, sge: ibv_sge) -> c_int {
    let advice = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
    let flags = ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;
    unsafe { ibv_advise_mr(pd.raw(), advice, flags, &mut { sge }, 1) }
}

/// Registers an on-demand region, to which advice can be applied.
fn on_demand(pd: &Pd) -> Mr {
    let support = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
    if pd.device().attr_ex().odp_caps.general_caps & support == 0 {
        ignore("the device claims no on-demand regions (odp_caps)");
    }
    Mr::new(pd, 8192, ALL_ACCESS | Access::IBV_ACCESS_ON_DEMAND)
}

fn advice_is_taken(device: &Device) {
    let pd = Pd::new(device);
    let mr = on_demand(&pd);
    advise(&pd, mr.sge(0, 8192)).supported("ibv_advise_mr");
}

fn advice_beyond_the_region_is_refused(device: &Device) {
    let pd = Pd::new(device);
    let mr = on_demand(&pd);
    advise(&pd, mr.sge(0, 8192)).supported("ibv_advise_mr");
    advise(&pd, mr.sge(8000, 193)).fails("ibv_advise_mr", &[libc::EFAULT, libc::ENOENT]);
}

fn advice_for_a_foreign_region_is_refused(device: &Device) {
    let (pd, other) = (Pd::new(device), Pd::new(device));
    let (mr, foreign) = (on_demand(&pd), on_demand(&other));
    advise(&pd, mr.sge(0, 4096)).supported("ibv_advise_mr");
    let refusals = [libc::EPERM, libc::ENOENT, libc::EFAULT];
    advise(&pd, foreign.sge(0, 4096)).fails("ibv_advise_mr", &refusals);
}

fn a_null_region_discards_writes_and_reads_as_zeroes(device: &Device) {
    let pair = Pair::rc(device);
    let raw = unsafe { ibv_alloc_null_mr(pair.pd.raw()) }.supported("ibv_alloc_null_mr");
    let null = Mr::from_raw(&pair.pd, pair.a.mr.memory(), raw);
    let nothing = |length| ibv_sge {
        addr: 0x1000,
        length,
        lkey: null.lkey(),
    };
    pair.b.mr.write(0, &[7; 24]);
    pair.b.receive(1, 0, 24);
    pair.a.mr.write(0, b"abcdefgh");
    let sges = [pair.a.mr.sge(0, 8), nothing(8), pair.a.mr.sge(0, 8)];
    pair.a.qp.post(Request::send(&sges).id(2));
    pair.a.cq.success(2);
    pair.b.cq.success(1);
    equal(
        "what came",
        pair.b.mr.read(0, 24),
        b"abcdefgh\0\0\0\0\0\0\0\0abcdefgh".to_vec(),
    );

    pair.b.qp.receive(3, &[nothing(8), pair.b.mr.sge(100, 8)]);
    pair.a.mr.write(0, b"dropped!arrived!");
    pair.a.qp.post(pair.a.send(0, 16).id(4));
    pair.a.cq.success(4);
    pair.b.cq.success(3);
    equal("what came", pair.b.mr.read(100, 8), b"arrived!".to_vec());
}

/// Device memory, freed at its end.
struct Dm(*mut ibv_dm);

impl Dm {
    fn new(device: &Device, length: usize) -> Self {
        if device.attr_ex().max_dm_size == 0 {
            ignore("the device claims no memory of its own (max_dm_size)");
        }
        let mut attr = ibv_alloc_dm_attr {
            length,
            ..Default::default()
        };
        Self(unsafe { ibv_alloc_dm(device.context(), &mut attr) }.succeeds("ibv_alloc_dm"))
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        must("ibv_free_dm", unsafe { ibv_free_dm(self.0) });
    }
}

fn device_memory_region(pd: &Pd, dm: &Dm, length: usize) -> *mut ibv_mr {
    let access = (ALL_ACCESS | Access::IBV_ACCESS_ZERO_BASED).0;
    unsafe { ibv_reg_dm_mr(pd.raw(), dm.0, 0, length, access) }.succeeds("ibv_reg_dm_mr")
}

fn device_memory_copies_and_serves(device: &Device) {
    let pair = Pair::rc(device);
    let dm = Dm::new(device, 4096);
    unsafe { ibv_memcpy_to_dm(dm.0, 64, b"inside..".as_ptr().cast(), 8) }
        .succeeds("ibv_memcpy_to_dm");
    let raw = device_memory_region(&pair.pd, &dm, 4096);
    let mr = Mr::from_raw(&pair.pd, pair.b.mr.memory(), raw);
    pair.a
        .qp
        .post(Request::read(&[pair.a.mr.sge(0, 6)], 64, mr.rkey()));
    pair.a.cq.success(1);
    equal("what was read", pair.a.mr.read(0, 6), b"inside".to_vec());

    pair.a.mr.write(0, b"written");
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 7)], 128, mr.rkey()));
    pair.a.cq.success(1);
    let mut out = [0_u8; 8];
    unsafe { ibv_memcpy_from_dm(out.as_mut_ptr().cast(), dm.0, 128, 8) }
        .succeeds("ibv_memcpy_from_dm");
    equal("what was written", &out, b"written\0");
}

/// NICs copy device memory in words of four bytes. No attribute reports this.
fn device_memory_is_copied_in_whole_words(device: &Device) {
    let dm = Dm::new(device, 4096);
    let mut bytes = *b"twelve bytes";
    let place = bytes.as_mut_ptr().cast();
    for (offset, length) in [(0, 12), (4, 8), (4092, 4), (4096, 0)] {
        unsafe { ibv_memcpy_to_dm(dm.0, offset, place, length) }.succeeds("ibv_memcpy_to_dm");
        unsafe { ibv_memcpy_from_dm(place, dm.0, offset, length) }.succeeds("ibv_memcpy_from_dm");
    }
    for (offset, length) in [(0, 6), (2, 4), (1, 1), (4, 11), (3, 0)] {
        unsafe { ibv_memcpy_to_dm(dm.0, offset, place, length) }
            .fails("ibv_memcpy_to_dm", &[libc::EINVAL]);
        unsafe { ibv_memcpy_from_dm(place, dm.0, offset, length) }
            .fails("ibv_memcpy_from_dm", &[libc::EINVAL]);
    }
    equal("the bytes", &bytes, b"twelve bytes");
}

fn device_memory_beyond_its_end_is_refused(device: &Device) {
    let dm = Dm::new(device, 4096);
    unsafe { ibv_memcpy_to_dm(dm.0, 4095, b"ab".as_ptr().cast(), 2) }
        .fails("ibv_memcpy_to_dm", &[libc::EFAULT, libc::EINVAL]);
}

fn device_memory_of_a_region_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let dm = Dm::new(device, 4096);
    let mr = device_memory_region(&pd, &dm, 4096);
    let result = unsafe { ibv_free_dm(dm.0) };
    unsafe { ibv_dereg_mr(mr) }.succeeds("ibv_dereg_mr");
    result.fails("ibv_free_dm", &[libc::EBUSY]);
}

fn dma_buf_that_is_none_is_refused(device: &Device) {
    let pd = Pd::new(device);
    unsafe { ibv_reg_dmabuf_mr(pd.raw(), 0, 4096, 0, -1, 1) }.fails(
        "ibv_reg_dmabuf_mr",
        &[libc::EBADF, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS],
    );
}

fn region_is_of_no_use_after_its_end(device: &Device) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, ALL_ACCESS);
    let (address, rkey) = (mr.at(0), mr.rkey());
    let (_memory, result) = mr.deregister();
    result.succeeds("ibv_dereg_mr");
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 8)], address, rkey));
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}
