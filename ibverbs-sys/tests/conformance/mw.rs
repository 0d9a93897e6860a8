//! Memory windows of both types, and keys that end.

use ibverbs_sys::ibv_access_flags as Access;
use ibverbs_sys::ibv_device_cap_flags as Capability;
use ibverbs_sys::ibv_mw_type as Type;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_type_1_window_is_allocated,
        a_type_2_window_is_allocated,
        type_1_window_grants_what_is_bound,
        type_1_bind_changes_the_key,
        type_1_bind_of_nothing_revokes,
        type_1_bind_beyond_the_region_fails,
        type_1_bind_needs_the_region_s_permission,
        type_1_bind_of_remote_write_needs_local_write,
        type_1_bind_without_a_region_has_no_range,
        type_1_bind_without_a_region_revokes,
        type_1_bind_of_a_foreign_domain_s_region_is_refused,
        type_1_zero_based_bind_is_refused,
        type_1_window_is_bound_by_a_send_request,
        type_1_zero_based_send_request_fails,
        type_1_window_is_not_invalidated,
        type_1_window_is_not_invalidated_by_the_peer,
        type_2_window_grants_what_is_bound,
        type_2_window_guards_its_ends,
        type_2_window_grants_only_the_access_bound,
        type_2_window_allows_atomics,
        type_2_unbound_key_is_refused,
        type_2_local_invalidate_revokes,
        type_2_remote_invalidate_revokes,
        completion_contains_the_invalidated_key,
        type_2_rebinds_after_invalidate,
        type_2_bind_of_a_bound_window_is_refused,
        type_2_bind_of_nothing_fails,
        a_type_2_bind_uses_the_tag_of_the_new_key,
        a_type_2b_window_is_invalidated_only_by_its_queue_pair,
        bind_by_a_former_key_fails,
        bind_by_a_foreign_domain_s_queue_pair_fails,
        bind_to_a_zero_based_region_fails,
        bind_with_an_unknown_flag_is_posted,
        type_2b_belongs_to_its_queue_pair,
        bind_beyond_the_region_is_refused,
        bind_needs_the_region_s_permission,
        bind_of_remote_write_needs_local_write,
        bind_of_a_foreign_domain_s_region_is_refused,
        zero_based_window_starts_at_zero,
        flags_of_regions_do_not_prevent_a_bind,
        region_with_a_window_is_busy,
        window_of_a_bound_region_can_be_freed,
        invalidate_of_an_unknown_key_fails,
        invalidate_of_a_region_fails,
        invalidate_of_an_invalid_window_fails,
        remote_invalidate_of_an_unknown_key_fails,
        remote_invalidate_of_an_invalid_window_fails,
        send_with_invalidate_arrives,
        long_send_with_invalidate_arrives,
        key_increments_its_tag,
    ]
}

/// A window, freed at its end, which is before that of its domain.
struct Mw {
    raw: *mut ibv_mw,
    _pd: Pd,
}

impl Mw {
    fn new(pd: &Pd, of: Type) -> Self {
        let device = pd.device();
        if of == Type::IBV_MW_TYPE_1 {
            device.needs(Capability::IBV_DEVICE_MEM_WINDOW, "IBV_DEVICE_MEM_WINDOW");
        } else if !device.has(Capability::IBV_DEVICE_MEM_WINDOW_TYPE_2A) {
            let name = "IBV_DEVICE_MEM_WINDOW_TYPE_2A or 2B";
            device.needs(Capability::IBV_DEVICE_MEM_WINDOW_TYPE_2B, name);
        }
        let raw = unsafe { ibv_alloc_mw(pd.raw(), of) }.succeeds("ibv_alloc_mw");
        Self {
            raw,
            _pd: pd.clone(),
        }
    }

    fn rkey(&self) -> u32 {
        unsafe { (*self.raw).rkey }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        must("ibv_dealloc_mw", unsafe { ibv_dealloc_mw(self.raw) });
    }
}

const REMOTE: Access = Access(
    Access::IBV_ACCESS_REMOTE_WRITE.0
        | Access::IBV_ACCESS_REMOTE_READ.0
        | Access::IBV_ACCESS_REMOTE_ATOMIC.0,
);

/// A pair, and a region of the second end that permits windows.
struct Ground {
    pair: Pair,
    mr: Mr,
}

impl Ground {
    fn new(device: &Device) -> Self {
        Self::with(device, ALL_ACCESS | Access::IBV_ACCESS_MW_BIND)
    }

    fn with(device: &Device, access: Access) -> Self {
        let pair = Pair::rc(device);
        let mr = Mr::new(&pair.pd, 8192, access);
        Self { pair, mr }
    }

    fn place(&self, offset: usize, length: u64, access: Access) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr.raw(),
            addr: self.mr.at(offset),
            length,
            mw_access_flags: access.0,
        }
    }

    /// Binds a type 2 window at the second end and returns its key.
    #[track_caller]
    fn bind(&self, mw: &Mw, place: ibv_mw_bind_info, status: Status) -> u32 {
        let key = unsafe { ibv_inc_rkey(mw.rkey()) };
        self.pair
            .b
            .qp
            .post(Request::bind(mw.raw, key, place).id(50));
        let done = self.pair.b.cq.expect(50, status);
        if status == Status::IBV_WC_SUCCESS {
            equal("the opcode", done.opcode, ibv_wc_opcode::IBV_WC_BIND_MW);
            // A program keeps the key of the bind.
            unsafe { (*mw.raw).rkey = key };
        }
        key
    }

    /// Binds the middle of the region for everything.
    #[track_caller]
    fn bound(&self, mw: &Mw) -> u32 {
        self.bind(mw, self.place(4096, 1024, REMOTE), Status::IBV_WC_SUCCESS)
    }

    #[track_caller]
    fn write(&self, address: u64, key: u32, status: Status) {
        let a = &self.pair.a;
        a.qp.post(Request::write(&[a.mr.sge(0, 8)], address, key).id(60));
        a.cq.expect(60, status);
    }
}

fn a_type_1_window_is_allocated(device: &Device) {
    let pd = Pd::new(device);
    let mw = Mw::new(&pd, Type::IBV_MW_TYPE_1);
    let raw = unsafe { &*mw.raw };
    equal("pd", raw.pd, pd.raw());
    equal("context", raw.context, device.context());
    equal("type", raw.type_, Type::IBV_MW_TYPE_1);
}

fn a_type_2_window_is_allocated(device: &Device) {
    let mw = Mw::new(&Pd::new(device), Type::IBV_MW_TYPE_2);
    equal("type", unsafe { (*mw.raw).type_ }, Type::IBV_MW_TYPE_2);
    assert!(mw.rkey() != 0);
}

/// Posts the bind of a type 1 window at the second end. Returns the result of the verb.
fn post_bind_1(ground: &Ground, mw: &Mw, bind_info: ibv_mw_bind_info) -> i32 {
    let mut bind = ibv_mw_bind {
        wr_id: 50,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        bind_info,
    };
    unsafe { ibv_bind_mw(ground.pair.b.qp.raw(), mw.raw, &mut bind) }
}

/// Binds a type 1 window at the second end.
#[track_caller]
fn bind_1(ground: &Ground, mw: &Mw, bind_info: ibv_mw_bind_info) {
    post_bind_1(ground, mw, bind_info).supported("ibv_bind_mw");
    ground.pair.b.cq.success(50);
}

/// Posts a bind of a type 1 window that fails.
#[track_caller]
fn fail_to_bind_1(ground: &Ground, mw: &Mw, bind_info: ibv_mw_bind_info) {
    post_bind_1(ground, mw, bind_info).supported("ibv_bind_mw");
    ground.pair.b.cq.expect(50, Status::IBV_WC_MW_BIND_ERR);
}

fn type_1_window_grants_what_is_bound(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    bind_1(&ground, &mw, ground.place(4096, 1024, REMOTE));
    ground.pair.a.mr.write(0, b"windowed");
    ground.write(ground.mr.at(4096), mw.rkey(), Status::IBV_WC_SUCCESS);
    equal("the bytes", ground.mr.read(4096, 8), b"windowed".to_vec());
    ground.write(
        ground.mr.at(4096 - 8),
        mw.rkey(),
        Status::IBV_WC_REM_ACCESS_ERR,
    );
}

fn type_1_bind_changes_the_key(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    bind_1(&ground, &mw, ground.place(0, 1024, REMOTE));
    let first = mw.rkey();
    bind_1(&ground, &mw, ground.place(1024, 1024, REMOTE));
    assert!(mw.rkey() != first, "the key of before is in use again");
    ground.write(ground.mr.at(1024), mw.rkey(), Status::IBV_WC_SUCCESS);
    ground.write(ground.mr.at(0), first, Status::IBV_WC_REM_ACCESS_ERR);
}

fn type_1_bind_of_nothing_revokes(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    bind_1(&ground, &mw, ground.place(0, 1024, REMOTE));
    let key = mw.rkey();
    ground.write(ground.mr.at(0), key, Status::IBV_WC_SUCCESS);
    bind_1(&ground, &mw, ground.place(0, 0, NO_ACCESS));
    ground.write(ground.mr.at(0), key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn type_1_bind_beyond_the_region_fails(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    fail_to_bind_1(&ground, &mw, ground.place(8000, 193, REMOTE));
}

fn type_1_bind_needs_the_region_s_permission(device: &Device) {
    let ground = Ground::with(device, ALL_ACCESS);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    fail_to_bind_1(&ground, &mw, ground.place(0, 64, REMOTE));
}

fn type_1_bind_of_remote_write_needs_local_write(device: &Device) {
    let ground = Ground::with(device, Access::IBV_ACCESS_MW_BIND);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    let place = ground.place(0, 64, Access::IBV_ACCESS_REMOTE_WRITE);
    fail_to_bind_1(&ground, &mw, place);
}

fn type_1_bind_without_a_region_has_no_range(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    for (addr, length) in [(0, 64), (ground.mr.at(0), 0)] {
        let place = ibv_mw_bind_info {
            mr: std::ptr::null_mut(),
            addr,
            length,
            mw_access_flags: REMOTE.0,
        };
        post_bind_1(&ground, &mw, place).fails("ibv_bind_mw", &[libc::EINVAL]);
    }
}

fn type_1_bind_without_a_region_revokes(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    bind_1(&ground, &mw, ground.place(0, 64, REMOTE));
    let key = mw.rkey();
    let nothing = ibv_mw_bind_info {
        mr: std::ptr::null_mut(),
        addr: 0,
        length: 0,
        mw_access_flags: 0,
    };
    bind_1(&ground, &mw, nothing);
    ground.write(ground.mr.at(0), key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn type_1_bind_of_a_foreign_domain_s_region_is_refused(device: &Device) {
    let ground = Ground::new(device);
    let other = Pd::new(device);
    let foreign = Mr::new(&other, 4096, ALL_ACCESS | Access::IBV_ACCESS_MW_BIND);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    let place = ibv_mw_bind_info {
        mr: foreign.raw(),
        addr: foreign.at(0),
        length: 64,
        mw_access_flags: REMOTE.0,
    };
    post_bind_1(&ground, &mw, place).fails("ibv_bind_mw", &[libc::EPERM]);
}

fn type_1_zero_based_bind_is_refused(device: &Device) {
    // IBTA o10-36.2.2.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    let place = ground.place(0, 64, REMOTE | Access::IBV_ACCESS_ZERO_BASED);
    post_bind_1(&ground, &mw, place).fails("ibv_bind_mw", &[libc::EINVAL]);
}

fn type_1_window_is_bound_by_a_send_request(device: &Device) {
    // The manual names windows of type 2 here; drivers post ibv_bind_mw as this request.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    for flag in [NO_ACCESS, Access::IBV_ACCESS_LOCAL_WRITE] {
        let place = ground.place(4096, 1024, REMOTE | flag);
        let key = ground.bind(&mw, place, Status::IBV_WC_SUCCESS);
        ground.write(ground.mr.at(4096), key, Status::IBV_WC_SUCCESS);
    }
}

fn type_1_zero_based_send_request_fails(device: &Device) {
    // IBTA o10-36.2.2.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    let place = ground.place(0, 64, REMOTE | Access::IBV_ACCESS_ZERO_BASED);
    ground.bind(&mw, place, Status::IBV_WC_MW_BIND_ERR);
}

/// Posts a local invalidate that fails at the second end.
#[track_caller]
fn fail_to_invalidate(ground: &Ground, key: u32) {
    let b = &ground.pair.b;
    b.qp.post(Request::local_invalidate(key));
    let failed = b.cq.next();
    // IBTA 11.6.2 has both for an invalidation that is not allowed.
    let expected = [Status::IBV_WC_LOC_QP_OP_ERR, Status::IBV_WC_MW_BIND_ERR];
    assert!(
        expected.contains(&failed.status),
        "it is {}",
        says(failed.status)
    );
}

fn type_1_window_is_not_invalidated(device: &Device) {
    // IBTA o10-37.2.26: only windows of type 2 are.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    bind_1(&ground, &mw, ground.place(0, 64, REMOTE));
    fail_to_invalidate(&ground, mw.rkey());
}

fn type_1_window_is_not_invalidated_by_the_peer(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
    bind_1(&ground, &mw, ground.place(0, 64, REMOTE));
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    b.receive(70, 0, 64);
    a.qp.post(Request::send_and_invalidate(&[a.mr.sge(0, 8)], mw.rkey()));
    assert!(
        b.cq.next().status != Status::IBV_WC_SUCCESS,
        "the receive succeeded"
    );
}

fn type_2_window_grants_what_is_bound(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    ground.pair.a.mr.write(0, b"windowed");
    ground.write(ground.mr.at(4096), key, Status::IBV_WC_SUCCESS);
    equal("the bytes", ground.mr.read(4096, 8), b"windowed".to_vec());
    let a = &ground.pair.a;
    a.qp.post(Request::read(&[a.mr.sge(100, 8)], ground.mr.at(4096), key));
    a.cq.success(1);
    equal("what was read", a.mr.read(100, 8), b"windowed".to_vec());
    ground.write(ground.mr.at(4096 + 1024 - 8), key, Status::IBV_WC_SUCCESS);
}

fn type_2_window_guards_its_ends(device: &Device) {
    for offset in [4096 - 1, 4096 + 1024 - 7] {
        let ground = Ground::new(device);
        let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
        let key = ground.bound(&mw);
        ground.write(ground.mr.at(offset), key, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

fn type_2_window_grants_only_the_access_bound(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let place = ground.place(0, 64, Access::IBV_ACCESS_REMOTE_READ);
    let key = ground.bind(&mw, place, Status::IBV_WC_SUCCESS);
    let a = &ground.pair.a;
    a.qp.post(Request::read(&[a.mr.sge(0, 8)], ground.mr.at(0), key));
    a.cq.success(1);
    ground.write(ground.mr.at(0), key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn type_2_window_allows_atomics(device: &Device) {
    device.needs_atomics();
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let a = &ground.pair.a;
    a.qp.post(Request::fetch_and_add(
        a.mr.sge(0, 8),
        ground.mr.at(4096),
        key,
        3,
    ));
    a.cq.success(1);
    equal("the counter", ground.mr.u64(4096), 3);
}

fn type_2_unbound_key_is_refused(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    ground.write(ground.mr.at(0), mw.rkey(), Status::IBV_WC_REM_ACCESS_ERR);
}

fn type_2_local_invalidate_revokes(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    ground.write(ground.mr.at(4096), key, Status::IBV_WC_SUCCESS);
    ground.pair.b.qp.post(Request::local_invalidate(key).id(51));
    let done = ground.pair.b.cq.success(51);
    equal("the opcode", done.opcode, ibv_wc_opcode::IBV_WC_LOCAL_INV);
    ground.write(ground.mr.at(4096), key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn type_2_remote_invalidate_revokes(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    b.receive(70, 0, 64);
    a.qp.post(Request::send_and_invalidate(&[a.mr.sge(0, 8)], key));
    a.cq.success(1);
    b.cq.success(70);
    ground.write(ground.mr.at(4096), key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn completion_contains_the_invalidated_key(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    b.receive(70, 0, 64);
    a.qp.post(Request::send_and_invalidate(&[a.mr.sge(0, 8)], key));
    let received = b.cq.success(70);
    assert!(
        received.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0,
        "IBV_WC_WITH_INV is missing"
    );
    equal(
        "the key",
        unsafe { received.__bindgen_anon_1.invalidated_rkey },
        key,
    );
}

fn type_2_rebinds_after_invalidate(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    for round in 0..5 {
        let place = ground.place(round * 512, 512, REMOTE);
        let key = ground.bind(&mw, place, Status::IBV_WC_SUCCESS);
        ground.write(ground.mr.at(round * 512), key, Status::IBV_WC_SUCCESS);
        ground.pair.b.qp.post(Request::local_invalidate(key).id(51));
        ground.pair.b.cq.success(51);
    }
}

fn type_2_bind_of_a_bound_window_is_refused(device: &Device) {
    // IBTA 10.6.7.2.2: a type 2 window must be invalid when it is bound.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    ground.bound(&mw);
    ground.bind(&mw, ground.place(0, 64, REMOTE), Status::IBV_WC_MW_BIND_ERR);
}

fn type_2_bind_of_nothing_fails(device: &Device) {
    // IBTA o10-37.2.40.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    ground.bind(&mw, ground.place(0, 0, REMOTE), Status::IBV_WC_MW_BIND_ERR);
}

fn a_type_2_bind_uses_the_tag_of_the_new_key(device: &Device) {
    // IBTA 10.6.7.2.2: the program chooses the low eight bits of the key, and the device the
    // others.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let b = &ground.pair.b;
    let place = ground.place(4096, 1024, REMOTE);
    let wanted = unsafe { ibv_inc_rkey(mw.rkey()) };
    b.qp.post(Request::bind(mw.raw, wanted ^ 0x0055_0000, place).id(50));
    b.cq.success(50);
    ground.write(ground.mr.at(4096), wanted, Status::IBV_WC_SUCCESS);
}

fn a_type_2b_window_is_invalidated_only_by_its_queue_pair(device: &Device) {
    let name = "IBV_DEVICE_MEM_WINDOW_TYPE_2B";
    device.needs(Capability::IBV_DEVICE_MEM_WINDOW_TYPE_2B, name);
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let a = &ground.pair.a;
    a.qp.post(Request::local_invalidate(key));
    let failed = a.cq.next();
    let expected = [Status::IBV_WC_LOC_QP_OP_ERR, Status::IBV_WC_MW_BIND_ERR];
    assert!(
        expected.contains(&failed.status),
        "it is {}, not an error",
        says(failed.status)
    );
}

fn bind_by_a_former_key_fails(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let former = mw.rkey();
    let key = ground.bound(&mw);
    ground.pair.b.qp.post(Request::local_invalidate(key).id(51));
    ground.pair.b.cq.success(51);
    unsafe { (*mw.raw).rkey = former };
    let place = ground.place(0, 64, REMOTE);
    ground.bind(&mw, place, Status::IBV_WC_MW_BIND_ERR);
    unsafe { (*mw.raw).rkey = key };
}

fn bind_by_a_foreign_domain_s_queue_pair_fails(device: &Device) {
    // IBTA C10-72.
    let ground = Ground::new(device);
    let other = Pd::new(device);
    let mw = Mw::new(&other, Type::IBV_MW_TYPE_2);
    let mr = Mr::new(&other, 4096, ALL_ACCESS | Access::IBV_ACCESS_MW_BIND);
    let place = ibv_mw_bind_info {
        mr: mr.raw(),
        addr: mr.at(0),
        length: 64,
        mw_access_flags: REMOTE.0,
    };
    ground.bind(&mw, place, Status::IBV_WC_MW_BIND_ERR);
}

fn bind_to_a_zero_based_region_fails(device: &Device) {
    let access = ALL_ACCESS | Access::IBV_ACCESS_MW_BIND | Access::IBV_ACCESS_ZERO_BASED;
    let ground = Ground::with(device, access);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let place = ibv_mw_bind_info {
        addr: 0,
        ..ground.place(0, 64, REMOTE)
    };
    ground.bind(&mw, place, Status::IBV_WC_MW_BIND_ERR);
}

fn bind_with_an_unknown_flag_is_posted(device: &Device) {
    // Older kernels ignore flags that they do not know, newer ones and softroce fail the bind. The
    // region has no right to flushes (bits 8 and 9).
    for bit in [8, 9, 31] {
        let ground = Ground::new(device);
        let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
        let place = ground.place(4096, 1024, REMOTE | Access(1 << bit));
        let key = unsafe { ibv_inc_rkey(mw.rkey()) };
        let b = &ground.pair.b;
        b.qp.post(Request::bind(mw.raw, key, place).id(50));
        let done = b.cq.next();
        let expected = [Status::IBV_WC_SUCCESS, Status::IBV_WC_MW_BIND_ERR];
        assert!(
            expected.contains(&done.status),
            "with bit {bit}, it is {}",
            says(done.status)
        );
    }
}

fn type_2b_belongs_to_its_queue_pair(device: &Device) {
    let name = "IBV_DEVICE_MEM_WINDOW_TYPE_2B";
    device.needs(Capability::IBV_DEVICE_MEM_WINDOW_TYPE_2B, name);
    // IBTA 10.6.7.2: the window is accessible only through the queue pair to which it is bound.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let (a, b) = (
        End::new(&ground.pair.pd, &plan, 4096),
        End::new(&ground.pair.pd, &plan, 4096),
    );
    a.qp.connect(b.qp.number());
    b.qp.connect(a.qp.number());
    a.qp.post(Request::write(&[a.mr.sge(0, 8)], ground.mr.at(4096), key));
    a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

fn bind_beyond_the_region_is_refused(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    ground.bind(
        &mw,
        ground.place(8000, 193, REMOTE),
        Status::IBV_WC_MW_BIND_ERR,
    );
}

fn bind_needs_the_region_s_permission(device: &Device) {
    let ground = Ground::with(device, ALL_ACCESS);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    ground.bind(&mw, ground.place(0, 64, REMOTE), Status::IBV_WC_MW_BIND_ERR);
}

fn bind_of_remote_write_needs_local_write(device: &Device) {
    let ground = Ground::with(device, Access::IBV_ACCESS_MW_BIND);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let place = ground.place(0, 64, Access::IBV_ACCESS_REMOTE_WRITE);
    ground.bind(&mw, place, Status::IBV_WC_MW_BIND_ERR);
}

fn bind_of_a_foreign_domain_s_region_is_refused(device: &Device) {
    let ground = Ground::new(device);
    let other = Pd::new(device);
    let foreign = Mr::new(&other, 4096, ALL_ACCESS | Access::IBV_ACCESS_MW_BIND);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let place = ibv_mw_bind_info {
        mr: foreign.raw(),
        addr: foreign.at(0),
        length: 64,
        mw_access_flags: REMOTE.0,
    };
    ground.bind(&mw, place, Status::IBV_WC_MW_BIND_ERR);
}

fn zero_based_window_starts_at_zero(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let place = ground.place(4096, 1024, REMOTE | Access::IBV_ACCESS_ZERO_BASED);
    let key = ground.bind(&mw, place, Status::IBV_WC_SUCCESS);
    ground.pair.a.mr.write(0, b"windowed");
    ground.write(16, key, Status::IBV_WC_SUCCESS);
    equal(
        "the bytes",
        ground.mr.read(4096 + 16, 8),
        b"windowed".to_vec(),
    );
}

fn flags_of_regions_do_not_prevent_a_bind(device: &Device) {
    let of_regions = [
        Access::IBV_ACCESS_LOCAL_WRITE,
        Access::IBV_ACCESS_MW_BIND,
        Access::IBV_ACCESS_ON_DEMAND,
        Access::IBV_ACCESS_HUGETLB,
        Access::IBV_ACCESS_RELAXED_ORDERING,
    ];
    let ground = Ground::new(device);
    for flag in of_regions {
        let place = || ground.place(4096, 1024, REMOTE | flag);
        let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
        let key = ground.bind(&mw, place(), Status::IBV_WC_SUCCESS);
        ground.write(ground.mr.at(4096), key, Status::IBV_WC_SUCCESS);
        let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_1);
        bind_1(&ground, &mw, place());
        ground.write(ground.mr.at(4096), mw.rkey(), Status::IBV_WC_SUCCESS);
    }
}

fn region_with_a_window_is_busy(device: &Device) {
    // The manual of ibv_alloc_mw: ibv_dereg_mr fails while a window is bound.
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    unsafe { ibv_dereg_mr(ground.mr.raw()) }.fails("ibv_dereg_mr", &[libc::EBUSY, libc::EINVAL]);
    ground.write(ground.mr.at(4096), key, Status::IBV_WC_SUCCESS);
}

fn window_of_a_bound_region_can_be_freed(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    drop(mw);
    ground.write(ground.mr.at(4096), key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn invalidate_of_an_unknown_key_fails(device: &Device) {
    let ground = Ground::new(device);
    drop(Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2));
    fail_to_invalidate(&ground, ground.mr.rkey() ^ 0x7fff_ff00);
}

fn invalidate_of_a_region_fails(device: &Device) {
    // Only regions of fast registrations can be invalidated, which user programs do not have.
    let ground = Ground::new(device);
    drop(Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2));
    fail_to_invalidate(&ground, ground.mr.rkey());
}

fn invalidate_of_an_invalid_window_fails(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    ground.pair.b.qp.post(Request::local_invalidate(key).id(51));
    ground.pair.b.cq.success(51);
    fail_to_invalidate(&ground, key);
}

fn remote_invalidate_of_an_unknown_key_fails(device: &Device) {
    let ground = Ground::new(device);
    drop(Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2));
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    b.receive(70, 0, 64);
    let key = ground.mr.rkey() ^ 0x7fff_ff00;
    a.qp.post(Request::send_and_invalidate(&[a.mr.sge(0, 8)], key));
    // IBTA 9.9.3.1, class J: the receive fails, and the queue pair with it.
    assert!(
        b.cq.next().status != Status::IBV_WC_SUCCESS,
        "the receive succeeded"
    );
    b.qp.becomes(ibv_qp_state::IBV_QPS_ERR);
}

fn remote_invalidate_of_an_invalid_window_fails(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    b.qp.post(Request::local_invalidate(key).id(51));
    b.cq.success(51);
    b.receive(70, 0, 64);
    a.qp.post(Request::send_and_invalidate(&[a.mr.sge(0, 8)], key));
    assert!(
        b.cq.next().status != Status::IBV_WC_SUCCESS,
        "the receive succeeded"
    );
    b.qp.becomes(ibv_qp_state::IBV_QPS_ERR);
}

fn send_with_invalidate_arrives(device: &Device) {
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    let sent = pattern(9000, 3);
    a.mr.write(0, &sent);
    b.receive(70, 0, 9000);
    a.qp.post(Request::send_and_invalidate(&[a.mr.sge(0, 9000)], key));
    a.cq.success(1);
    let received = b.cq.success(70);
    equal("the opcode", received.opcode, ibv_wc_opcode::IBV_WC_RECV);
    equal("the length", received.byte_len, 9000);
    assert!(b.mr.read(0, 9000) == sent);
}

fn long_send_with_invalidate_arrives(device: &Device) {
    const LONG: usize = 300_001;
    let ground = Ground::new(device);
    let mw = Mw::new(&ground.pair.pd, Type::IBV_MW_TYPE_2);
    let key = ground.bound(&mw);
    let (a, b) = (&ground.pair.a, &ground.pair.b);
    let [from, to] = [(); 2].map(|()| Mr::new(&ground.pair.pd, LONG, ALL_ACCESS));
    let sent = pattern(LONG, 3);
    from.write(0, &sent);
    b.qp.receive(70, &[to.sge(0, LONG)]);
    let send = Request::send_and_invalidate(&[from.sge(0, LONG)], key);
    a.qp.post(send);
    a.cq.success(1);
    let received = b.cq.success(70);
    equal("the length", received.byte_len as usize, LONG);
    assert!(to.read(0, LONG) == sent, "the bytes are not those sent");
    let address = ground.mr.at(4096);
    ground.write(address, key, Status::IBV_WC_REM_ACCESS_ERR);
}

fn key_increments_its_tag(_: &Device) {
    // The manual of ibv_inc_rkey: the eight low bits count, and wrap by themselves.
    equal("the key", unsafe { ibv_inc_rkey(0x1234_5601) }, 0x1234_5602);
    equal("the key", unsafe { ibv_inc_rkey(0x1234_56ff) }, 0x1234_5600);
}
